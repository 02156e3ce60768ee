"""Input of one connection's streams that waits for its readers, with one limit for all of them together."""

from __future__ import annotations

import asyncio
from collections import deque

LIMIT = 1024 * 1024
"""Bytes that may wait before nothing more is read from the connection.

Neither SPDY as Kubernetes uses it nor its WebSocket protocols have flow control for single streams.
"""
TAKE = 256 * 1024
"""Bytes that a reader gets at once, at most (more only if they came as one chunk)."""
_ENTRY = 64
"""Accounted overhead of a chunk: a million tiny frames must count, too."""


class BufferQuota:
    """Counts the bytes that wait in one connection's inboxes."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self.used = 0
        self.space = asyncio.Event()
        self.space.set()

    def take(self, size: int) -> None:
        self.used += size
        if self.used > self._limit:
            self.space.clear()

    def give(self, size: int) -> None:
        self.used -= size
        if self.used <= self._limit // 2:
            self.space.set()


class Inbox:
    """One stream's input: filled by the connection's reader, read by one consumer."""

    def __init__(self, quota: BufferQuota) -> None:
        self._quota = quota
        self._chunks: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        self._unwanted = False

    def put(self, data: bytes) -> None:
        """Add a chunk, without waiting: the quota says when to stop reading.  Empty chunks are dropped."""
        if data and not self._ended and not self._unwanted:
            self._chunks.append(data)
            self._quota.take(len(data) + _ENTRY)
            self._changed.set()

    def end(self) -> None:
        """Mark the end of input."""
        self._ended = True
        self._changed.set()

    def discard(self) -> None:
        """Drop what waits, and what is still to come."""
        self._unwanted = True
        self._ended = True
        while self._chunks:
            self._quota.give(len(self._chunks.popleft()) + _ENTRY)
        self._changed.set()

    async def read(self) -> bytes:
        """Read what waits, at least a byte; b"" at the end."""
        while not self._chunks:
            if self._ended:
                return b""
            self._changed.clear()
            await self._changed.wait()
        taken = [self._chunks.popleft()]
        size = len(taken[0])
        while self._chunks and size + len(self._chunks[0]) <= TAKE:
            taken.append(self._chunks.popleft())
            size += len(taken[-1])
        self._quota.give(size + _ENTRY * len(taken))
        return taken[0] if len(taken) == 1 else b"".join(taken)
