"""One exec under way: its output on the way to its caller, its end, its failure."""

from __future__ import annotations

import asyncio
from collections import deque

OUTPUT_LIMIT = 256 * 1024
"""Bytes that may wait for a slow caller; then the process is blocked, as on any full pipe."""


class ExecRun:
    """Output in order of arrival, then the exit code."""

    def __init__(self, exec_id: str, workload_id: str) -> None:
        self.id = exec_id
        self.workload_id = workload_id
        self.code: int | None = None
        self.ended = asyncio.Event()
        self._chunks: deque[tuple[str, bytes]] = deque()
        self._size = 0
        self._open = 0
        self._fault: BaseException | None = None
        self._ready = asyncio.Event()
        self._room = asyncio.Event()

    def sink(self, name: str) -> ExecSink:
        self._open += 1
        return ExecSink(self, name)

    async def put(self, name: str, data: bytes) -> None:
        while self._size >= OUTPUT_LIMIT and self._fault is None:
            self._room.clear()
            await self._room.wait()
        if self._fault is None:
            self._chunks.append((name, data))
            self._size += len(data)
            self._ready.set()

    def finished(self) -> None:
        """One of its streams has ended."""
        self._open -= 1
        self._ready.set()

    def exited(self, code: int) -> None:
        self.code = code
        self.ended.set()
        self._ready.set()

    def give_up_output(self) -> None:
        """What still holds its streams open is not waited for."""
        self._open = 0
        self._ready.set()

    def fail(self, fault: BaseException) -> None:
        """Its caller gets this instead; the first one stays."""
        self._fault = self._fault or fault
        self._ready.set()
        self._room.set()

    async def take(self) -> tuple[str, bytes] | None:
        """The next piece of output; None once it has ended and all output was taken."""
        while True:
            if self._fault is not None:
                raise self._fault
            if self._chunks:
                name, data = self._chunks.popleft()
                self._size -= len(data)
                self._room.set()
                return name, data
            if self.code is not None and self._open <= 0:
                return None
            self._ready.clear()
            await self._ready.wait()


class ExecSink:
    """Receives one of its streams."""

    def __init__(self, run: ExecRun, name: str) -> None:
        self._run = run
        self._name = name
        self._offset = 0

    async def write(self, data: bytes) -> int:
        await self._run.put(self._name, data)
        self._offset += len(data)
        return self._offset

    async def finish(self) -> None:
        self._run.finished()
