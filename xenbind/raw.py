"""The compiled module, or a stand-in that gives the reason of its absence at first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Unavailable(Exception):
    """xenbind cannot be used here: not built, or its libraries do not load."""


class _Absent:
    def __init__(self, cause: str) -> None:
        self._cause = cause

    def __getattr__(self, name: str) -> Any:
        raise Unavailable(
            f"the Xen binding is not there: {self._cause} "
            "(install the package xenpod-libxl; without packages Debian's libxen-dev, and run "
            "`make xenbind` in a checkout, else `python -m xenbind.build`; Xen itself need not run for that)"
        )


def _load() -> tuple[Any, Any]:
    try:
        module = import_module("xenbind._libxl")
    except ImportError as error:
        absent = _Absent(str(error))
        return absent, absent
    return module.ffi, module.lib


ffi, lib = _load()

CData = Any
"""A C value of cffi."""


def text(value: CData) -> str:
    """A C string."""
    return str(ffi.string(value).decode(errors="replace"))


def names(enum: str, prefix: str) -> dict[int, str]:
    """The names of a C enum by their numbers, without their common prefix."""
    return {code: name.removeprefix(prefix) for code, name in ffi.typeof(enum).elements.items()}
