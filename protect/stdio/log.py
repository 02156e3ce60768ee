"""The log of one workload: CRI log lines, each written exactly once even if we are killed.

A line is ``<RFC3339Nano> stdout|stderr F|P <content>\\n``, in the kubelet's format.  docs/channel.md defines
"consumed".
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from daemonkit.backoff import Backoff
from daemonkit.faults import Refused
from daemonkit.host.host_calls import HostCalls
from daemonkit.shares import Holding
from protect.stdio.disk import LogDisk
from protect.stdio.fanout import FanOut, LiveReader
from protect.stdio.journal import Journal
from protect.stdio.logfile import LogFile, NoFile

log = logging.getLogger(__name__)

LONGEST_LINE_BYTES = 16_384
"""Bytes of content in one log line; a longer line is cut into P lines and a last F (containerd's default)."""
CHUNK_BYTES = 2 * LONGEST_LINE_BYTES
"""Bytes of output per append."""
LINES_PER_APPEND = 1024
"""Lines per append: a newline takes about 50 bytes in the file.  Both limits bound an append's time."""
_DISK = LogDisk()
_CALLS = HostCalls()


class LogSink:
    """The ``Sink`` that writes stdout or stderr to the log."""

    def __init__(self, owner: WorkloadLog, name: str) -> None:
        self._owner = owner
        self._name = name
        self._tail = bytearray()

    @property
    def consumed(self) -> int:
        """Bytes whose lines are in the file; the offset to resume from after a restart."""
        position = self._owner.file.position
        return position.stdout if self._name == "stdout" else position.stderr

    @property
    def finished(self) -> bool:
        """Whether the stream's end is recorded; the agent then no longer knows the stream."""
        position = self._owner.file.position
        return position.stdout_finished if self._name == "stdout" else position.stderr_finished

    async def write(self, data: bytes) -> int:
        """Log the complete lines, and keep the rest; waits while the file cannot be written."""
        self._owner.readers.publish(self._name, data)
        self._tail += data
        while True:
            chunk = piece(self._tail)
            every = len(chunk) == len(self._tail)
            batch, used = render(chunk, self._name, time.time_ns())
            if used:
                await self._owner.append(batch, self._name, self.consumed + used)
                del self._tail[:used]
            if every:
                return self.consumed
            # A stream that never pauses must not block the loop.
            await asyncio.sleep(0)

    async def finish(self) -> None:
        """Log the last line if it has no newline, and record the stream's end."""
        batch = render_rest(bytes(self._tail), self._name, time.time_ns()) if self._tail else b""
        await self._owner.append(batch, self._name, self.consumed + len(self._tail), finished=True)
        self._tail.clear()


class WorkloadLog:
    """One log file with two streams in it, and its live readers.

    While the file cannot be written (ENOSPC, EIO), its streams wait and the write is retried, without loss;
    ``trouble`` and the daemon's log have the reason.
    """

    def __init__(self, path: str, file: LogFile | NoFile) -> None:
        """Use ``open``."""
        self.path = path
        self.file = file
        self.readers = FanOut()
        self.stdout = LogSink(self, "stdout")
        self.stderr = LogSink(self, "stderr")
        self.trouble = ""
        self._turn = asyncio.Lock()
        self._closed = False

    @classmethod
    async def open(
        cls, path: str, journal: Path, step: Callable[[str], None] = lambda name: None
    ) -> WorkloadLog:
        """Open the log, or continue it from the journal's position.

        With an empty path lines are dropped, but offsets are kept.  Refused: a new log cannot be opened, or
        its file system does not answer in time.  A log with a journal opens later, as soon as its file can be
        opened.  Broken: the journal is damaged.  ``step`` is called with each step of the file work.
        """
        notes, new = _notes(journal)
        opened = cls(path, LogFile(path, notes, step) if path else NoFile(notes))
        try:
            await opened._find()
        except OSError as error:
            if new:
                opened.file.close()
                os.unlink(journal)
                raise Refused("open", f"log {path}", error.strerror or str(error)) from error
            opened.report(error)
        return opened

    async def _find(self) -> None:
        if self.file.wanting:
            self.file.use(await _CALLS.run(self.path, self.file.find, os.close))

    def subscribe(self, memory: Holding | None = None) -> LiveReader:
        """Output from now on, until the log is closed; see ``LiveReader``."""
        return self.readers.subscribe(memory)

    async def append(self, batch: bytes, stream: str, consumed: int, *, finished: bool = False) -> None:
        """Append a batch to the file, and note its stream's position; called by the sinks."""
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
                if batch or self.file.unfinished:
                    await self._find()
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
        """Report a write error in the daemon's log, once."""
        cause = error.strerror or str(error)
        if cause != self.trouble:
            log.error("log %s cannot be written: %s; its workload is held back", self.path, cause)
        self.trouble = cause

    async def reopen(self) -> None:
        """Continue in a new file at the path, after the kubelet's rename of the old.  Refused: it fails."""
        async with self._turn:
            if self._closed:
                raise Refused("reopen", f"log {self.path}", "it is closed")
            try:
                self.file.use(await _CALLS.run(self.path, self.file.find, os.close))
            except OSError as error:
                raise Refused("reopen", f"log {self.path}", error.strerror or str(error)) from error

    async def close(self) -> None:
        """Close the file and end the readers; may be repeated.

        Output that is not in the file is lost to this process, but not to the next process, which opens the
        log and resumes.
        """
        async with self._turn:
            if not self._closed:
                self._closed = True
                self.readers.end()
                self.file.close()


def _notes(path: Path) -> tuple[Journal, bool]:
    """Open the journal, and tell whether it is new.  It is on the daemon's own file system."""
    new = not path.exists()
    try:
        return Journal.open(path), new
    except OSError as error:
        raise Refused("open", f"log journal {path}", error.strerror or str(error)) from error


def stamp(now_ns: int) -> str:
    """RFC 3339 with nanoseconds in UTC; constant length, therefore rewritten lines fit."""
    seconds, rest = divmod(now_ns, 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest:09d}Z"


def piece(tail: bytearray) -> bytes:
    """The part of the output to append next: at most CHUNK_BYTES, and LINES_PER_APPEND newlines."""
    chunk = bytes(tail[:CHUNK_BYTES])
    if chunk.count(b"\n") <= LINES_PER_APPEND:
        return chunk
    rest = chunk.split(b"\n", LINES_PER_APPEND)[-1]
    return chunk[: len(chunk) - len(rest)]


def render(content: bytes, stream: str, now_ns: int) -> tuple[bytes, int]:
    """The log lines of ``content``, and the number of its bytes in them.

    The remaining bytes form no line yet: less than a full line, at most 16,384 bytes.  The cuts depend on the
    bytes only, not on their chunks.
    """
    head = f"{stamp(now_ns)} {stream} ".encode()
    whole, part = head + b"F ", head + b"P "
    used = content.rfind(b"\n") + 1
    lines: list[bytes] = []
    if used:
        body = content[: used - 1]
        if len(body) <= LONGEST_LINE_BYTES or max(map(len, body.split(b"\n"))) <= LONGEST_LINE_BYTES:
            lines.append(whole + body.replace(b"\n", b"\n" + whole) + b"\n")
        else:
            lines.extend(_cut(line, whole, part) for line in body.split(b"\n"))
    while len(content) - used > LONGEST_LINE_BYTES:
        lines.append(part + content[used : used + LONGEST_LINE_BYTES] + b"\n")
        used += LONGEST_LINE_BYTES
    return b"".join(lines), used


def render_rest(content: bytes, stream: str, now_ns: int) -> bytes:
    """The last line, without a newline, as a P line (like containerd)."""
    return f"{stamp(now_ns)} {stream} P ".encode() + content + b"\n"


def _cut(line: bytes, whole: bytes, part: bytes) -> bytes:
    """Cut one line into P lines and an F line."""
    last = max(0, len(line) - 1) // LONGEST_LINE_BYTES * LONGEST_LINE_BYTES
    parts = [part + line[at : at + LONGEST_LINE_BYTES] + b"\n" for at in range(0, last, LONGEST_LINE_BYTES)]
    return b"".join(parts) + whole + line[last:] + b"\n"
