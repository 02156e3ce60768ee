"""Bounds the memory of streams: for each connection, for each pod, and for all together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from daemonkit.loop.token_bucket import TokenBucket

LIMIT_BYTES = 1024 * 1024
"""Bytes that may wait before nothing more is read from the connection.

Kubernetes' SPDY and WebSocket protocols have no flow control for single streams.
"""
POD_LIMIT_BYTES = 8 * 1024 * 1024
"""Bytes for all connections of one pod."""
TOTAL_BYTES = 64 * 1024 * 1024
"""Bytes for the connections of all pods; a namespace holds no more than is left free (ADR 63)."""
STREAM_BYTES = 4096
"""Bytes accounted for an open stream of a connection: its objects, and a task."""
IGNORED = 256.0
"""Burst of frames without effect on one connection."""
IGNORED_PER_SECOND = 64.0
"""An honest client sends one ping every 5 s."""
_REST = 1.0
"""Debt in seconds before a connection is not read: one long pause replaces a pause after each frame."""


class Reader(Protocol):
    """A waiter for input."""

    def wake(self) -> None:
        """Tell the waiter that input or an end came."""
        ...


class StreamMemory:
    """The memory of all pods' connections, counted by namespace."""

    def __init__(self, total: int = TOTAL_BYTES) -> None:
        self._free = total
        self._held: Counter[str] = Counter()
        self._stalled: set[PodQuota] = set()

    def is_over(self, namespace: str) -> bool:
        """Whether a namespace holds more than is left free."""
        return self._held[namespace] > self._free

    def take(self, namespace: str, size: int) -> None:
        self._free -= size
        self._held[namespace] += size

    def give(self, namespace: str, size: int) -> None:
        self._free += size
        self._held[namespace] -= size
        if not self._held[namespace]:
            del self._held[namespace]
        for pod in tuple(self._stalled):
            pod.check()

    def stall(self, pod: PodQuota) -> None:
        """Check the pod again once any connection gives memory back."""
        self._stalled.add(pod)

    def forget(self, pod: PodQuota) -> None:
        self._stalled.discard(pod)


class PodQuota:
    """Common limits of the connections of one pod."""

    def __init__(
        self, limit: int = POD_LIMIT_BYTES, memory: StreamMemory | None = None, namespace: str = ""
    ) -> None:
        self._limit = limit
        self._memory = memory or StreamMemory()
        self._namespace = namespace
        self._stalled: set[BufferQuota] = set()
        self.used = 0

    @property
    def full(self) -> bool:
        """Whether nothing more is read for the pod."""
        return self.used > self._limit or self._memory.is_over(self._namespace)

    @property
    def half_full(self) -> bool:
        """Whether the pod gets no more streams: otherwise streams could fill the memory and stop reading."""
        return self.used > self._limit // 2

    def take(self, size: int) -> None:
        self.used += size
        self._memory.take(self._namespace, size)

    def give(self, size: int) -> None:
        self.used -= size
        self._memory.give(self._namespace, size)
        self.check()

    def check(self) -> None:
        """Allow the connections more if space is free."""
        if self._stalled and not self.full:
            self._memory.forget(self)
            stalled, self._stalled = self._stalled, set()
            for quota in stalled:
                quota.check()

    def stall(self, quota: BufferQuota) -> None:
        """Check the quota again once space is free."""
        self._stalled.add(quota)
        self._memory.stall(self)

    def forget(self, quota: BufferQuota) -> None:
        self._stalled.discard(quota)
        if not self._stalled:
            self._memory.forget(self)


class BufferQuota:
    """Counts the waiting bytes in one connection's inboxes, and all chunks so far."""

    def __init__(
        self, limit: int = LIMIT_BYTES, pod: PodQuota | None = None, ignored: TokenBucket | None = None
    ) -> None:
        self._limit = limit
        self._ignored = ignored or TokenBucket(IGNORED, IGNORED_PER_SECOND)
        self._pod = pod or PodQuota()
        self._news: set[Reader] | None = None
        self._held = 0
        self.used = 0
        self.arrivals = 0
        self.space = asyncio.Event()
        self.space.set()

    @property
    def pod_half_full(self) -> bool:
        """See ``PodQuota``."""
        return self._pod.half_full

    def take(self, size: int) -> int:
        """Count a chunk; returns its place in the order of arrival."""
        self.arrivals += 1
        self.extend(size)
        return self.arrivals

    def extend(self, size: int) -> None:
        """Count more bytes of the last chunk."""
        self.used += size
        self._pod.take(size)
        if self.used > self._limit or self._pod.full:
            self.space.clear()
            self._pod.stall(self)
            self._wake()

    def give(self, size: int) -> None:
        self.used -= size
        self._pod.give(size)
        self.check()

    def hold(self, size: int) -> None:
        """Count bytes of objects, for the pod alone: no reading makes room for objects."""
        self._held += size
        self._pod.take(size)

    def release(self, size: int) -> None:
        """Undo ``hold``."""
        self._held -= size
        self._pod.give(size)

    def check(self) -> None:
        """Allow more if space is free."""
        if self._pod.full:
            if not self.space.is_set():
                self._pod.stall(self)
        elif self.used <= self._limit // 2:
            self.space.set()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Have readers wait until the end of the block: a batch of small chunks becomes one chunk."""
        self._news = set()
        try:
            yield
        finally:
            self._wake()
            self._news = None

    @property
    def gathering(self) -> bool:
        """Whether a batch is under way, and readers wait for its end."""
        return self._news is not None and self.space.is_set()

    def arrived(self, reader: Reader) -> None:
        """Wake the reader, now or at the end of the batch."""
        if self._news is None:
            reader.wake()
        else:
            self._news.add(reader)

    def owed_for_nothing(self) -> float:
        """Account for a frame without effect; returns the seconds for which nothing may be read now."""
        seconds = self._ignored.borrow()
        if seconds < _REST:
            return 0.0
        self._wake()
        return seconds

    def _wake(self) -> None:
        while self._news:
            self._news.pop().wake()

    def close(self) -> None:
        """Give back the connection's remaining bytes; nothing is counted any more."""
        pod, self._pod = self._pod, PodQuota()
        pod.forget(self)
        self._pod.take(self.used + self._held)
        pod.give(self.used + self._held)
