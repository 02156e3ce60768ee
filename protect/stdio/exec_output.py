"""The output of an exec on its way to the one caller who reads it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence


class ExecOutput:
    """``async for stream, data in output``; nothing is taken from the zone that the caller does not take.

    ``sink(name)`` is to be registered for each of the streams; the iteration ends when all have finished,
    or with the exception given to ``abort``.
    """

    def __init__(self, streams: Sequence[str] = ("stdout", "stderr")) -> None:
        self._open = set(streams)
        self._chunks: deque[tuple[ExecSink, bytes]] = deque()
        self._failure: Exception | None = None
        self._changed = asyncio.Event()

    def sink(self, stream: str) -> ExecSink:
        """The sink of one of the streams."""
        return ExecSink(self, stream)

    def abort(self, failure: Exception) -> None:
        """End now: the caller gets the exception, the sinks give their streams up."""
        if self._failure is None:
            self._failure = failure
            for sink, _ in self._chunks:
                sink.taken.set()
            self._chunks.clear()
            self._changed.set()

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
        sink, data = self._chunks.popleft()
        sink.taken.set()
        return sink.name, data

    async def give(self, sink: ExecSink, data: bytes) -> None:
        """For a sink: wait until the caller has taken it."""
        if self._failure is None:
            sink.taken.clear()
            self._chunks.append((sink, data))
            self._changed.set()
            await sink.taken.wait()
        if self._failure is not None:
            raise BrokenPipeError("nobody reads the output any more")

    def finished(self, stream: str) -> None:
        """For a sink."""
        self._open.discard(stream)
        self._changed.set()


class ExecSink:
    """One stream of an exec: a ``Sink``."""

    def __init__(self, owner: ExecOutput, name: str) -> None:
        self.name = name
        self.taken = asyncio.Event()
        self._owner = owner
        self._consumed = 0

    async def write(self, data: bytes) -> int:
        """Returns once the caller has taken it; BrokenPipeError when it never will."""
        await self._owner.give(self, data)
        self._consumed += len(data)
        return self._consumed

    async def finish(self) -> None:
        self._owner.finished(self.name)
