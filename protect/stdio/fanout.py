"""Gives a workload's output to live readers, each with a bounded queue: no reader delays the log."""

from __future__ import annotations

import asyncio
from collections import deque

from daemonkit.faults import Exhausted
from daemonkit.shares import Holding, uncounted

QUEUE_BYTES = 1 << 20
"""Bytes that a reader may fall behind before it is cut off."""
MOST_READERS = 16
JOINED_BYTES = 4096
"""Consecutive chunks of one stream are joined up to this size in bytes."""
LEAST_CHUNK_BYTES = 128
"""Least accounted size of a chunk: its overhead."""


def accounted(chunk: bytearray | bytes) -> int:
    """Bytes of memory to account for a chunk."""
    return max(len(chunk), LEAST_CHUNK_BYTES)


class LiveReader:
    """Output from now on: ``async for stream, data in reader``.

    Ends with the output.  Exhausted: the reader fell too far behind.  It first gets the queued output, and is
    then cut off; output never has gaps.
    """

    def __init__(self, owner: FanOut, memory: Holding) -> None:
        self._owner = owner
        self._memory = memory
        self._chunks: deque[tuple[str, bytearray | bytes]] = deque()
        self._size = 0
        self._ended = False
        self._cut_off = ""
        self._changed = asyncio.Event()

    def __aiter__(self) -> LiveReader:
        return self

    async def __anext__(self) -> tuple[str, bytes]:
        while not self._chunks:
            if self._cut_off:
                raise Exhausted("attach", "output", self._cut_off, "read faster, or read the log")
            if self._ended:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        stream, data = self._chunks.popleft()
        self._size -= accounted(data)
        self._memory.at_most(self._size)
        return stream, bytes(data)

    def close(self) -> None:
        """Stop reading."""
        self._owner.leave(self)
        self._memory.close()
        self.end()

    def put(self, stream: str, data: bytes) -> None:
        """Queue output; called by the fan-out."""
        before = self._size
        if before + len(data) > QUEUE_BYTES:
            self._cut(f"the reader fell {QUEUE_BYTES} bytes behind")
        else:
            if not self._joined(stream, data):
                self._chunks.append((stream, bytearray(data) if len(data) < JOINED_BYTES else data))
                self._size += accounted(data)
            # One chunk is always accepted.
            if before and self._size > before and not self._memory.grow(self._size - before):
                self._cut("readers of its namespace hold as much memory as they may")
        self._changed.set()

    def _cut(self, cause: str) -> None:
        self._cut_off = cause
        self._owner.leave(self)

    def _joined(self, stream: str, data: bytes) -> bool:
        """Append data to the newest chunk, if both are small; returns True if appended."""
        if not self._chunks or self._chunks[-1][0] != stream:
            return False
        last = self._chunks[-1][1]
        if not isinstance(last, bytearray) or len(last) + len(data) > JOINED_BYTES:
            return False
        self._size -= accounted(last)
        last += data
        self._size += accounted(last)
        return True

    def end(self) -> None:
        """End the output; called by the fan-out."""
        self._ended = True
        self._changed.set()


class FanOut:
    """Gives output to every live reader."""

    def __init__(self) -> None:
        self._readers: set[LiveReader] = set()
        self._ended = False

    def subscribe(self, memory: Holding | None = None) -> LiveReader:
        """Add a reader, with memory of its tenant.  Exhausted: too many readers."""
        if len(self._readers) >= MOST_READERS:
            raise Exhausted("attach", "output", f"it has {MOST_READERS} readers already")
        reader = LiveReader(self, memory or uncounted())
        if self._ended:
            reader.end()
        else:
            self._readers.add(reader)
        return reader

    def publish(self, stream: str, data: bytes) -> None:
        """Queue output for every reader, without waiting."""
        for reader in list(self._readers):
            reader.put(stream, data)

    def leave(self, reader: LiveReader) -> None:
        """Remove a reader."""
        self._readers.discard(reader)

    def end(self) -> None:
        """End the output of all readers."""
        self._ended = True
        for reader in self._readers:
            reader.end()
        self._readers.clear()
