"""The log of one workload, written exactly once across our own death (docs/channel.md, "consumed")."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from daemonkit.faults import Refused
from protect.channel.backoff import Backoff
from protect.stdio.disk import Disk
from protect.stdio.fanout import FanOut, Subscription
from protect.stdio.journal import Journal
from protect.stdio.lines import LONGEST, render, render_rest
from protect.stdio.logfile import LogFile, NoFile

log = logging.getLogger(__name__)

PIECE = 2 * LONGEST
"""Bytes of output per append: bounds how long one goes on (bytes that are all newlines make it 50 times
as long in the file)."""
_DISK = Disk()


class LogStream:
    """stdout or stderr on its way into the log: a ``Sink``."""

    def __init__(self, owner: WorkloadLog, name: str) -> None:
        self._owner = owner
        self._name = name
        self._tail = bytearray()

    @property
    def consumed(self) -> int:
        """Bytes whose lines are in the file; where to resume after a restart."""
        position = self._owner.file.position
        return position.stdout if self._name == "stdout" else position.stderr

    @property
    def finished(self) -> bool:
        """Whether its end is recorded; then the agent knows the stream no more."""
        position = self._owner.file.position
        return position.stdout_finished if self._name == "stdout" else position.stderr_finished

    async def write(self, data: bytes) -> int:
        """Log the lines that are complete, and keep the rest; waits for as long as the file fails."""
        self._owner.readers.publish(self._name, data)
        self._tail += data
        while True:
            piece = bytes(self._tail[:PIECE])
            batch, used = render(piece, self._name, time.time_ns())
            if used:
                await self._owner.append(batch, self._name, self.consumed + used)
                del self._tail[:used]
            if len(self._tail) <= LONGEST and len(piece) < PIECE:
                return self.consumed
            # Another stream's turn: one that never pauses must not keep the loop.
            await asyncio.sleep(0)

    async def finish(self) -> None:
        """Log the last line, should it have no newline, and record the end."""
        batch = render_rest(bytes(self._tail), self._name, time.time_ns()) if self._tail else b""
        await self._owner.append(batch, self._name, self.consumed + len(self._tail), finished=True)
        self._tail.clear()


class WorkloadLog:
    """One log file with two streams in it, and its live readers.

    While the file cannot be written (ENOSPC, EIO) its streams wait and it is tried again, without loss;
    ``trouble`` says why, and the daemon's log too.
    """

    def __init__(self, path: str, file: LogFile | NoFile) -> None:
        """Use ``open``."""
        self.path = path
        self.file = file
        self.readers = FanOut()
        self.stdout = LogStream(self, "stdout")
        self.stderr = LogStream(self, "stderr")
        self.trouble = ""
        self._turn = asyncio.Lock()
        self._closed = False

    @classmethod
    def open(cls, path: str, journal: Path, step: Callable[[str], None] = lambda name: None) -> WorkloadLog:
        """Open the log, or go on with it where the journal says.  Blocking, short.

        With an empty path lines are dropped, but offsets are kept.  Refused when a new log cannot be
        opened; one that has a journal opens later, when its file can be.  Broken: the journal is damaged.
        ``step`` is told of each step of the file work.
        """
        known = journal.exists()
        try:
            notes = Journal.open(journal)
        except OSError as error:
            raise Refused("open", f"log journal {journal}", error.strerror or str(error)) from error
        opened = cls(path, LogFile(path, notes, step) if path else NoFile(notes))
        try:
            opened.file.open()
        except OSError as error:
            if not known:
                opened.file.close()
                journal.unlink()
                raise Refused("open", f"log {path}", error.strerror or str(error)) from error
            opened.report(error)
        return opened

    def subscribe(self) -> Subscription:
        """Output from now on, until the log is closed; see ``Subscription``."""
        return self.readers.subscribe()

    async def append(self, batch: bytes, stream: str, consumed: int, *, finished: bool = False) -> None:
        """Put the batch into the file and note how far the stream is; for its streams."""
        backoff = Backoff(first=0.1)
        backoff.delay()
        while True:
            if await self._try_append(batch, stream, consumed, finished):
                return
            await asyncio.sleep(backoff.delay())

    async def _try_append(self, batch: bytes, stream: str, consumed: int, finished: bool) -> bool:
        async with self._turn:
            if self._closed:
                raise Refused("write", f"log {self.path}", "it is closed")
            position = self.file.position.advanced(stream, consumed, finished)
            try:
                if batch:
                    await _DISK.run(lambda: self.file.append(batch, position))
                else:
                    self.file.advance(position)
            except OSError as error:
                self.report(error)
                return False
            if self.trouble:
                log.warning("log %s can be written again", self.path)
                self.trouble = ""
            return True

    def report(self, error: OSError) -> None:
        """Say once that the file fails."""
        cause = error.strerror or str(error)
        if cause != self.trouble:
            log.error("log %s cannot be written: %s; its workload is held back", self.path, cause)
        self.trouble = cause

    async def reopen(self) -> None:
        """Go on in a new file at the path (after the kubelet renamed the old one); else Refused."""
        async with self._turn:
            if self._closed:
                raise Refused("reopen", f"log {self.path}", "it is closed")
            try:
                await _DISK.run(self.file.reopen)
            except OSError as error:
                raise Refused("reopen", f"log {self.path}", error.strerror or str(error)) from error

    async def close(self) -> None:
        """Close the file and end the readers; again: nothing.  Output that is not in the file is lost
        to this process, not to the next that opens the log and resumes."""
        async with self._turn:
            if not self._closed:
                self._closed = True
                self.readers.end()
                self.file.close()
