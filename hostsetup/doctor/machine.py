"""The machine that is looked at, and what is found."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from daemonkit.faults import Fault
from protect.host import programs

_TEXT_LIMIT = 1 << 20


class CheckVerdict(Enum):
    """What a check found.  A warning does not keep pods from running; unknown: it could not be told."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """``fix``: shell commands, for root, after which the check is healthy; "" if it is healthy already."""

    check: str
    verdict: CheckVerdict
    says: str
    fix: str = ""


Check = Iterator[CheckResult]


def ok(check: str, says: str) -> CheckResult:
    return CheckResult(check, CheckVerdict.OK, says)


def warning(check: str, says: str, fix: str) -> CheckResult:
    return CheckResult(check, CheckVerdict.WARNING, says, fix)


def failed(check: str, says: str, fix: str) -> CheckResult:
    return CheckResult(check, CheckVerdict.FAILED, says, fix)


def unknown(check: str, says: str) -> CheckResult:
    return CheckResult(check, CheckVerdict.UNKNOWN, says)


def _room(path: Path) -> tuple[int, int]:
    usage = shutil.disk_usage(path)
    return usage.total, usage.free


@dataclass(frozen=True, slots=True)
class CheckedMachine:
    """Files below ``root``, programs on this machine's PATH."""

    root: Path = Path("/")
    release: str = os.uname().release
    """Of the kernel that runs."""
    run: Callable[[Sequence[str]], bytes] = programs.run
    room: Callable[[Path], tuple[int, int]] = _room
    """Bytes of a file system: all of it, and what is free."""
    owner: int = 0
    """The user that the daemons run as."""
    which: Callable[[str], str | None] = shutil.which

    def path(self, absolute: str | Path) -> Path:
        return self.root / str(absolute).lstrip("/")

    def text(self, absolute: str | Path) -> str:
        """What a file says, as far as 1 MiB; "" where there is none, or it cannot be read."""
        try:
            with self.path(absolute).open("rb") as file:
                return file.read(_TEXT_LIMIT).decode(errors="replace")
        except OSError:
            return ""

    def says(self, *command: str) -> str | None:
        """What a program says, without blanks around it; None: it is not there, or failed."""
        try:
            return self.run(command).decode(errors="replace").strip()
        except Fault:
            return None

    def processes(self) -> set[str]:
        """The names of what runs."""
        return {self.text(f"/proc/{found.name}/comm").strip() for found in self.path("/proc").glob("[0-9]*")}
