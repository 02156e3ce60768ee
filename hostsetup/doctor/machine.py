"""The machine under examination, and findings about it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from daemonkit.faults import Fault
from protect.host import programs

_TEXT_BYTES = 1 << 20


class CheckVerdict(Enum):
    """Result of a check.  Pods run in spite of a warning; unknown: the check could not tell."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """``fix``: shell commands for root that make the check healthy; "" for a healthy check."""

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
    """Release of the running kernel."""
    run: Callable[[Sequence[str]], bytes] = programs.run_program
    room: Callable[[Path], tuple[int, int]] = _room
    """Total and free bytes of a file system."""
    owner: int = 0
    """User of the daemons."""
    which: Callable[[str], str | None] = shutil.which

    def path(self, absolute: str | Path) -> Path:
        return self.root / str(absolute).lstrip("/")

    def text(self, absolute: str | Path) -> str:
        """The first 1 MiB of a file; "" if the file is missing or unreadable."""
        try:
            with self.path(absolute).open("rb") as file:
                return file.read(_TEXT_BYTES).decode(errors="replace")
        except OSError:
            return ""

    def says(self, *command: str) -> str | None:
        """Standard output of a program, stripped; None if the program is missing or failed."""
        try:
            return self.run(command).decode(errors="replace").strip()
        except Fault:
            return None

    def processes(self) -> set[str]:
        """Names of running processes."""
        return {self.text(f"/proc/{found.name}/comm").strip() for found in self.path("/proc").glob("[0-9]*")}
