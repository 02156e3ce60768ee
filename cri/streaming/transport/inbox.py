"""Queues the input of a connection's streams for their readers, in order, within a common limit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from operator import itemgetter
from typing import Generic, TypeVar

from cri.streaming.transport.quota import BufferQuota

TAKE_BYTES = 256 * 1024
"""Maximum bytes that a reader gets at once, except from a larger single chunk."""
_ENTRY_BYTES = 128
"""Bytes accounted for each chunk beside its data: a million tiny frames must count, too."""
_SMALL_BYTES = 4096
"""Bytes up to which a chunk is appended to its predecessor, if nothing came between."""
_JOINED_BYTES = 64 * 1024
"""Maximum bytes of a chunk after appending."""

K = TypeVar("K")


class Inbox:
    """The input of a stream: filled by the connection's reader, read by one consumer."""

    def __init__(self, quota: BufferQuota) -> None:
        self._quota = quota
        self._chunks: deque[tuple[int, bytes | bytearray]] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        self._unwanted = False

    def put(self, data: bytes) -> None:
        """Add a chunk, without waiting: the quota says when to stop reading.  Empty chunks are dropped."""
        if not data or self._ended or self._unwanted:
            return
        if not self._joined(data):
            kept = bytearray(data) if len(data) <= _SMALL_BYTES else data
            self._chunks.append((self._quota.take(len(data) + _ENTRY_BYTES), kept))
        self._quota.arrived(self)

    def wake(self) -> None:
        """Wake the consumer."""
        self._changed.set()

    def _joined(self, data: bytes) -> bool:
        """Append a small chunk to the last one, unless another inbox's came between."""
        if len(data) > _SMALL_BYTES or not self._chunks:
            return False
        place, last = self._chunks[-1]
        if place != self._quota.arrivals or not isinstance(last, bytearray) or len(last) >= _JOINED_BYTES:
            return False
        last += data
        self._quota.extend(len(data))
        return True

    def end(self) -> None:
        """Mark the end of input."""
        self._ended = True
        self._changed.set()

    def discard(self) -> None:
        """Drop all waiting and future input."""
        self._unwanted = True
        self._ended = True
        while self._chunks:
            self._quota.give(len(self._chunks.popleft()[1]) + _ENTRY_BYTES)
        self._changed.set()

    async def read(self) -> bytes:
        """Read the waiting bytes, at least one; b"" at the end."""
        while not self._chunks or self.gathering():
            if self.exhausted:
                return b""
            self._changed.clear()
            await self._changed.wait()
        return self.taken()

    def gathering(self) -> bool:
        """Whether more is about to come; the end of the batch then wakes the consumer."""
        if not self._quota.gathering:
            return False
        self._quota.arrived(self)
        return True

    @property
    def first(self) -> int | None:
        """The place of the next chunk in the order of arrival; None if none waits."""
        return self._chunks[0][0] if self._chunks else None

    @property
    def exhausted(self) -> bool:
        """Whether nothing waits, and nothing comes any more."""
        return self._ended and not self._chunks

    def taken(self, before: int | None = None) -> bytes:
        """Take waiting bytes, at least the first chunk, but only chunks that arrived ``before``."""
        taken = [self._chunks.popleft()[1]]
        size = len(taken[0])
        while self._chunks and size + len(self._chunks[0][1]) <= TAKE_BYTES:
            if before is not None and self._chunks[0][0] > before:
                break
            taken.append(self._chunks.popleft()[1])
            size += len(taken[-1])
        self._quota.give(size + _ENTRY_BYTES * len(taken))
        return bytes(taken[0]) if len(taken) == 1 else b"".join(taken)

    def tell(self, changed: asyncio.Event) -> None:
        """Set this event from now on, whenever input or an end arrives."""
        self._changed = changed


class InOrder(Generic[K]):
    """Some inboxes of one connection, read in the order in which their chunks arrived.

    The client's order of input on two streams is the order of its frames.
    """

    def __init__(self, inboxes: Mapping[K, Inbox]) -> None:
        self._open = dict(inboxes)
        self._changed = asyncio.Event()
        for inbox in self._open.values():
            inbox.tell(self._changed)

    async def read(self) -> tuple[K, bytes] | None:
        """Read the next input with its key: b"" at the end of an inbox, after its input; None after all."""
        while self._open:
            if any([inbox.gathering() for inbox in self._open.values()]):
                self._changed.clear()
                await self._changed.wait()
                continue
            waiting = [(inbox.first, key) for key, inbox in self._open.items() if inbox.first is not None]
            if waiting:
                first, key = min(waiting, key=itemgetter(0))
                return key, self._open[key].taken(min((at for at, _ in waiting if at > first), default=None))
            for key, inbox in self._open.items():
                if inbox.exhausted:
                    del self._open[key]
                    return key, b""
            self._changed.clear()
            await self._changed.wait()
        return None
