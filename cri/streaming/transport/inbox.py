"""What came on the streams of one connection and waits for its readers: bounded for all of them together."""

from __future__ import annotations

import asyncio
from collections import deque

LIMIT = 1024 * 1024
"""Bytes that wait in one connection before nothing more is read from it.  Neither SPDY as Kubernetes uses
it nor its WebSocket protocols have flow control for a single stream."""
TAKE = 256 * 1024
"""Bytes a reader gets at once, at most (more only if they came as one piece)."""
_ENTRY = 64
"""What an entry costs beside its bytes: a million empty frames must count, too."""


class BufferQuota:
    """Of one connection."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self.used = 0
        self.room = asyncio.Event()
        self.room.set()

    def take(self, size: int) -> None:
        self.used += size
        if self.used > self._limit:
            self.room.clear()

    def give(self, size: int) -> None:
        self.used -= size
        if self.used <= self._limit // 2:
            self.room.set()


class Inbox:
    """One stream's input: put by the connection's reader, read by one consumer."""

    def __init__(self, budget: BufferQuota) -> None:
        self._budget = budget
        self._pieces: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        self._unwanted = False

    def put(self, data: bytes) -> None:
        """Never waits; the budget tells when to stop reading.  Empty pieces carry nothing."""
        if data and not self._ended and not self._unwanted:
            self._pieces.append(data)
            self._budget.take(len(data) + _ENTRY)
            self._changed.set()

    def end(self) -> None:
        """Nothing more comes."""
        self._ended = True
        self._changed.set()

    def discard(self) -> None:
        """Its reader wants no more: what waits is dropped, and what comes."""
        self._unwanted = True
        self._ended = True
        while self._pieces:
            self._budget.give(len(self._pieces.popleft()) + _ENTRY)
        self._changed.set()

    async def read(self) -> bytes:
        """What waits, at least a byte; b"" at the end."""
        while not self._pieces:
            if self._ended:
                return b""
            self._changed.clear()
            await self._changed.wait()
        taken = [self._pieces.popleft()]
        size = len(taken[0])
        while self._pieces and size + len(self._pieces[0]) <= TAKE:
            taken.append(self._pieces.popleft())
            size += len(taken[-1])
        self._budget.give(size + _ENTRY * len(taken))
        return taken[0] if len(taken) == 1 else b"".join(taken)
