"""blkback's threads: a kernel thread for each ring of a disk, called ``<domain>.<disk>-<ring>``.

They are new whenever a guest connects its disk.  Nothing reports their start: blkback first reports the
connection, and then starts the threads.

Source: drivers/block/xen-blkback/xenbus.c (blkback_name, xen_update_blkif_status), proc(5).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_KTHREADD = 2
_NAME = re.compile(r"(\d{1,5})\.(xvd[a-z]{1,2})-\d{1,3}")


@dataclass(frozen=True, slots=True)
class BackendThread:
    """A thread that reads and writes the disk ``vdev`` for a domain."""

    pid: int
    domid: int
    vdev: str


class BackendThreads:
    """Finds blkback's threads among the kernel's threads; reads the name of each thread once."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._children = proc / str(_KTHREADD) / "task" / str(_KTHREADD) / "children"
        self._known: dict[int, BackendThread | None] = {}

    @property
    def usable(self) -> bool:
        """Whether the kernel lists its threads (CONFIG_PROC_CHILDREN)."""
        return self._children.exists()

    def look(self) -> list[BackendThread]:
        """All present threads.  Blocks for a short time."""
        now = {int(pid) for pid in self._children.read_text().split()}
        self._known = {pid: thread for pid, thread in self._known.items() if pid in now}
        self._known.update(self._named(now - self._known.keys()))
        return [thread for thread in self._known.values() if thread is not None]

    def _named(self, pids: set[int]) -> Iterator[tuple[int, BackendThread | None]]:
        for pid in pids:
            try:
                name = (self._proc / str(pid) / "comm").read_text().strip()
            except OSError:
                continue  # the thread has ended
            # A thread is called "kthreadd" until it gets its name.
            if name != "kthreadd":
                match = _NAME.fullmatch(name)
                yield pid, BackendThread(pid, int(match[1]), match[2]) if match else None
