"""Reads the resident memory and the CPU time of a runtime's processes from /proc."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
_ROLLUP = re.compile(r"^(Rss|Pss):\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in bytes: resident, and proportional (shared pages divided among their users)."""

    rss: int = 0
    pss: int = 0

    def __add__(self, other: Memory) -> Memory:
        return Memory(self.rss + other.rss, self.pss + other.pss)


class Peak:
    """Samples processes during the block; ``bytes`` is then the maximum resident memory of a process."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = list(pids)
        self.bytes = 0

    def __enter__(self) -> Peak:
        for pid in self._pids:
            # Sets VmHWM back (proc(5), clear_refs).
            (PROC / str(pid) / "clear_refs").write_text("5")
        return self

    def __exit__(self, *exc: object) -> None:
        found = (_PEAK.search(_read(pid, "status")) for pid in self._pids)
        self.bytes = max((int(match[1]) * 1024 for match in found if match), default=0)


def of(pids: Iterable[int]) -> Memory:
    """Memory of all processes together; ended processes do not count."""
    return sum(map(_of_one, pids), Memory())


def resident(pids: Iterable[int]) -> int:
    """Resident bytes of all processes together.  Faster than ``of``, which walks the page tables."""
    return sum(int(fields[1]) for pid in pids if (fields := _read(pid, "statm").split())) * _PAGE_BYTES


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time of processes together."""
    fields = (_read(pid, "stat").rpartition(")")[2].split() for pid in pids)
    return sum(int(one[11]) + int(one[12]) for one in fields) / _TICKS


def cpu_ns(pids: Iterable[int]) -> int:
    """The same in nanoseconds, by the clocks of the processes (clock_getcpuclockid(3))."""
    return sum(time.clock_gettime_ns((~pid << 3) | 2) for pid in pids)


def with_argument(text: str, program: str) -> set[int]:
    """Processes with ``program`` at the start of their name and ``text`` in their command line."""
    return {pid for pid in _pids() if _name(pid).startswith(program) and text in _command(pid)}


def descendants(pids: Iterable[int]) -> set[int]:
    """All descendants of ``pids``, without ``pids``."""
    found: set[int] = set()
    waiting = list(pids)
    while waiting:
        below = _children(waiting.pop())
        found.update(below)
        waiting += below
    return found


def named(pids: Iterable[int], name: str) -> set[int]:
    return {pid for pid in pids if _name(pid) == name}


def _pids() -> list[int]:
    return [int(path.name) for path in PROC.iterdir() if path.name.isdigit()]


def _of_one(pid: int) -> Memory:
    found = dict(_ROLLUP.findall(_read(pid, "smaps_rollup")))
    return Memory(int(found.get("Rss", 0)) * 1024, int(found.get("Pss", 0)) * 1024)


def _name(pid: int) -> str:
    return _read(pid, "comm").strip()


def _command(pid: int) -> str:
    return _read(pid, "cmdline")


def _children(pid: int) -> list[int]:
    try:
        threads = os.listdir(PROC / str(pid) / "task")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(word) for thread in threads for word in _read(pid, f"task/{thread}/children").split()]


def _read(pid: int, name: str) -> str:
    try:
        return (PROC / str(pid) / name).read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
