"""The changes of a set-up as values: new contents of files, units to enable."""

from __future__ import annotations

import difflib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file by its path on the host, and its content before and after; None: the file does not exist."""

    path: str
    before: str | None
    after: str | None
    why: str

    def shown(self) -> str:
        """Return the change as a unified diff under its reason."""
        name = self.path.lstrip("/")
        lines = difflib.unified_diff(
            (self.before or "").splitlines(keepends=True),
            (self.after or "").splitlines(keepends=True),
            "/dev/null" if self.before is None else f"a/{name}",
            "/dev/null" if self.after is None else f"b/{name}",
            n=1,
        )
        return f"{self.path}: {self.why}\n" + "".join(f"  {line.rstrip()}\n" for line in lines)


@dataclass(frozen=True, slots=True)
class Plan:
    """All changes of a set-up; ``notes``: remaining work for the operator."""

    files: tuple[FileChange, ...]
    units: tuple[str, ...]
    """Units that have to be enabled."""
    notes: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.files and not self.units


def with_variable(text: str, name: str, value: str) -> str:
    """Set a variable in a file of shell assignments: replace its last assignment, or append a new line.

    Commented-out assignments stay.  Source: Debian's /etc/default files; scripts read them with ``.``.
    """
    line = f"{name}={value}"
    lines = text.splitlines()
    places = [index for index, one in enumerate(lines) if one.startswith(f"{name}=")]
    if places:
        lines[places[-1]] = line
    else:
        lines.append(line)
    return "".join(f"{one}\n" for one in lines)


def variable(text: str, name: str) -> str | None:
    """Return a variable's literal value without quotes; None: unset."""
    values = [line.partition("=")[2].strip() for line in text.splitlines() if line.startswith(f"{name}=")]
    return values[-1].strip("\"'") if values else None
