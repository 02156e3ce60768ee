"""The output of an exec or a connection, for its single reader."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from daemonkit.shares import Holding, uncounted
from protect.stdio.fanout import accounted

AHEAD_BYTES = 256 * 1024
"""Most bytes read from the zone ahead of the caller, to decouple zone and caller."""
TAKE_BYTES = 128 * 1024
"""Most bytes given to the caller at once, unless they came as one chunk."""


class ExecOutput:
    """``async for stream, data in output``; reads at most ``AHEAD_BYTES`` of the zone before the caller.

    Register ``sink(name)`` for each stream.  The iteration ends when all streams have finished, or with the
    exception given to ``abort``.
    """

    def __init__(self, streams: Sequence[str] = ("stdout", "stderr"), memory: Holding | None = None) -> None:
        """``memory``: the tenant's; one chunk is always accepted, even beyond it."""
        self._memory = memory or uncounted()
        self._open = set(streams)
        self._chunks: deque[tuple[str, bytes]] = deque()
        self._size = 0
        self._failure: Exception | None = None
        self._changed = asyncio.Event()
        self._space = asyncio.Event()

    def sink(self, stream: str) -> ExecSink:
        """The sink of one of the streams."""
        return ExecSink(self, stream)

    def abort(self, failure: Exception) -> None:
        """End now: the caller gets the exception, the sinks abandon their streams."""
        if self._failure is None:
            self._failure = failure
            self._chunks.clear()
            self._memory.close()
            self._changed.set()
            self._space.set()

    def __aiter__(self) -> ExecOutput:
        return self

    async def __anext__(self) -> tuple[str, bytes]:
        while not self._chunks:
            if self._failure is not None:
                raise self._failure
            if not self._open:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        stream, first = self._chunks.popleft()
        taken, size = [first], len(first)
        while self._chunks and self._chunks[0][0] == stream and size + len(self._chunks[0][1]) <= TAKE_BYTES:
            taken.append(self._chunks.popleft()[1])
            size += len(taken[-1])
        self._size -= sum(map(accounted, taken))
        self._memory.at_most(self._size)
        self._space.set()
        return stream, first if len(taken) == 1 else b"".join(taken)

    async def give(self, stream: str, data: bytes) -> None:
        """Queue data for a sink, as soon as it fits or the queue is empty."""
        while self._failure is None and self._size and not self._fits(accounted(data)):
            self._space.clear()
            await self._space.wait()
        if self._failure is not None:
            raise BrokenPipeError("nobody reads the output any more")
        self._chunks.append((stream, data))
        self._size += accounted(data)
        self._changed.set()

    def _fits(self, size: int) -> bool:
        return self._size + size <= AHEAD_BYTES and self._memory.grow(size)

    def finished(self, stream: str) -> None:
        """Note the end of a sink's stream."""
        self._open.discard(stream)
        self._changed.set()


class ExecSink:
    """One stream of an exec: a ``Sink``."""

    def __init__(self, owner: ExecOutput, name: str) -> None:
        self._owner = owner
        self._name = name
        self._consumed = 0

    async def write(self, data: bytes) -> int:
        """Queue the data; waits for space.  BrokenPipeError: the caller has left."""
        await self._owner.give(self._name, data)
        self._consumed += len(data)
        return self._consumed

    async def finish(self) -> None:
        self._owner.finished(self._name)
