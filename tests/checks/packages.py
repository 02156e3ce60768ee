"""The packages of the project: one list, of which pyproject.toml is the owner."""

from __future__ import annotations

import tomllib
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_TOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
CHECKED = tuple(_TOOLS["mypy"]["packages"])
"""Those with types; the tests are one."""
LAYERED = tuple(_TOOLS["importlinter"]["root_packages"])
"""Those with rules of imports; the generated stubs are one."""
STUBS = "xenpod_proto"
TESTS = "tests"
PACKAGES = tuple(name for name in LAYERED if name != STUBS)
"""Those that people write and that are no tests."""
C = ("zone", "hostc")
"""The folders of C."""


class Note(UserWarning):
    """Something to look at, which is no failure."""


def note(text: str) -> None:
    """Show a note in pytest's summary."""
    warnings.warn(Note(text), stacklevel=2)
