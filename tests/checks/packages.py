"""The project's packages, read from pyproject.toml."""

from __future__ import annotations

import tomllib
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_TOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
CHECKED = tuple(_TOOLS["mypy"]["packages"])
"""Packages that mypy checks, including the tests."""
LAYERED = tuple(_TOOLS["importlinter"]["root_packages"])
"""Packages with import rules, including the generated stubs."""
STUBS = "xenpod_proto"
TESTS = "tests"
PACKAGES = tuple(name for name in LAYERED if name != STUBS)
"""Packages of the product: neither generated nor tests."""
C = ("zone", "hostc")
"""The folders of C."""


class Note(UserWarning):
    """A hint for the author of a change; not a failure."""


def note(text: str) -> None:
    """Show a note in pytest's summary."""
    warnings.warn(Note(text), stacklevel=2)
