"""A connection in memory: two ends, bounded, can be cut."""

from __future__ import annotations

import asyncio
from collections import deque

PIPE_SIZE = 65_536


class Pipe:
    """One direction of a connection: bounded, can be cut."""

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._closed = False
        self._changed = asyncio.Event()

    async def read(self, limit: int) -> bytes:
        while not self._chunks and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        if not self._chunks:
            return b""
        chunk = self._chunks.popleft()
        if len(chunk) > limit:
            self._chunks.appendleft(chunk[limit:])
            chunk = chunk[:limit]
        self._size -= len(chunk)
        self._changed.set()
        return chunk

    async def write(self, data: bytes) -> None:
        while self._size >= PIPE_SIZE and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        if self._closed:
            raise ConnectionResetError("the other side is gone")
        self._chunks.append(data)
        self._size += len(data)
        self._changed.set()

    def close(self, *, drop: bool) -> None:
        self._closed = True
        if drop:
            self._chunks.clear()
        self._changed.set()


class MemoryTransport:
    """An end of a pair."""

    def __init__(self, incoming: Pipe, outgoing: Pipe) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self.closed = False

    async def read(self, limit: int) -> bytes:
        return b"" if self.closed else await self._incoming.read(limit)

    async def write(self, data: bytes) -> None:
        if self.closed:
            raise ConnectionResetError("closed here")
        await self._outgoing.write(data)

    async def close(self) -> None:
        self.cut()

    def cut(self, *, drop: bool = True) -> None:
        """Break both directions; ``drop``: unread bytes are lost."""
        self.closed = True
        self._incoming.close(drop=True)
        self._outgoing.close(drop=drop)


def transport_pair() -> tuple[MemoryTransport, MemoryTransport]:
    """Both ends of a connection."""
    a, b = Pipe(), Pipe()
    return MemoryTransport(a, b), MemoryTransport(b, a)
