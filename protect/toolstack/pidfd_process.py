"""Processes by pid, start time and pidfd: safe against reuse of a pid.

Source: proc(5) /proc/<pid>/stat, pidfd_open(2).
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass

from daemonkit.tasks import join


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """Fields of /proc/<pid>/stat: ``state`` is a letter, ``starttime`` is in clock ticks since boot."""

    state: str
    parent: int
    starttime: int


def read_stat(pid: int) -> ProcessStat | None:
    """Read a process's stat; None: no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(b")") + 2 :].split()  # the name before the fields may hold blanks and brackets
    return ProcessStat(state=fields[0].decode(), parent=int(fields[1]), starttime=int(fields[19]))


class PidfdProcess:
    """A process held by pidfd: safe against reuse of its pid."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._ended: asyncio.Future[None] | None = None

    @classmethod
    def open(cls, pid: int, starttime: int | None = None) -> PidfdProcess | None:
        """Open a process; None if it has ended (zombies included) or has another start time."""
        try:
            pidfd = os.pidfd_open(pid)
        except (ProcessLookupError, OSError):
            return None
        found = read_stat(pid)
        if found is None or found.state in "ZX" or starttime not in (None, found.starttime):
            os.close(pidfd)
            return None
        return cls(pid, pidfd)

    def kill(self) -> None:
        """Send SIGKILL; does nothing after the process's end."""
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal; False: the process has ended."""
        if self._pidfd < 0:
            return False
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return False
        return True

    def stat(self) -> ProcessStat | None:
        """The process's stat; None after its end."""
        found = read_stat(self.pid)
        # signal 0 after the read proves that the pid still belonged to this process
        return found if found and found.state not in "ZX" and self._is_there() else None

    def _is_there(self) -> bool:
        try:
            signal.pidfd_send_signal(self._pidfd, 0)
        except (ProcessLookupError, OSError):
            return False
        return True

    async def wait(self) -> None:
        """Wait for the end of the process; several callers may wait."""
        if self._ended is None:
            loop = asyncio.get_running_loop()
            self._ended = loop.create_future()
            loop.add_reader(self._pidfd, self._on_end, loop)
        await join(self._ended)

    def _on_end(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._pidfd)
        if self._ended and not self._ended.done():
            self._ended.set_result(None)

    def close(self) -> None:
        """Stop watching; the process goes on."""
        fd, self._pidfd = self._pidfd, -1
        if fd < 0:
            return
        if self._ended is not None:
            with suppress(RuntimeError):  # the loop may be closed already
                asyncio.get_running_loop().remove_reader(fd)
            self._ended.cancel()
        os.close(fd)
