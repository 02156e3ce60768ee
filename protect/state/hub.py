"""Sends watchers a snapshot, and then each change.

Changes never wait for a watcher.  A watcher with a full queue is cut off, and starts again from a new
snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable

from daemonkit.faults import Exhausted
from protect.model.watch_events import Change, Event, Synced

QUEUE_LIMIT = 4096
"""Most changes in a watcher's queue."""

WATCHER_LIMIT = 64
"""Most watchers at once."""


class Hub:
    """Fans out changes to watchers; ``snapshot`` returns the present state."""

    def __init__(self, snapshot: Callable[[], Iterable[Change]], limit: int = QUEUE_LIMIT) -> None:
        self._snapshot = snapshot
        self._limit = limit
        self._watchers: set[_Watcher] = set()

    def publish(self, change: Change) -> None:
        for watcher in self._watchers:
            watcher.offer(change)

    async def watch(self) -> AsyncGenerator[Event, None]:
        """Yield the snapshot, Synced, then changes.  Exhausted: too many watchers, or a slow watcher."""
        if len(self._watchers) >= WATCHER_LIMIT:
            raise Exhausted("watch", "", f"there are {WATCHER_LIMIT} watchers already")
        watcher = _Watcher(self._limit)
        # Nothing is awaited here, else a change could get lost between the snapshot and the queue.
        self._watchers.add(watcher)
        snapshot = list(self._snapshot())
        try:
            for change in snapshot:
                yield change
            yield Synced()
            async for change in watcher.changes():
                yield change
        finally:
            self._watchers.discard(watcher)

    def close(self) -> None:
        """End every watch, for an orderly stop."""
        for watcher in self._watchers:
            watcher.close()


class _Watcher:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queue: asyncio.Queue[Change | None] = asyncio.Queue()
        self._overrun = False

    def offer(self, change: Change) -> None:
        if self._overrun:
            return
        if self._queue.qsize() < self._limit:
            self._queue.put_nowait(change)
            return
        self._overrun = True
        # Free the queue's memory: nobody will read the queue.
        self._queue = _closed(self._queue)

    def close(self) -> None:
        self._queue.put_nowait(None)

    async def changes(self) -> AsyncIterator[Change]:
        while True:
            change = await self._queue.get()
            if self._overrun:
                cause = f"the watcher is more than {self._limit} changes behind"
                raise Exhausted("watch", "", cause, "watch again")
            if change is None:
                return
            yield change


def _closed(queue: asyncio.Queue[Change | None]) -> asyncio.Queue[Change | None]:
    """Empty the queue, and put one entry to wake the reader."""
    while not queue.empty():
        queue.get_nowait()
    queue.put_nowait(None)
    return queue
