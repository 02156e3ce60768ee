"""Runs writes to logs on the event loop while the disk is fast, in threads while it is slow.

Measured: an append of a line or of 4 KiB takes 4 to 7 us, a round trip to a thread 100 us (64 KiB: 140 us and
400 us); aiofiles makes one round trip for each call.  But on a disk with throttled writeback a writer sleeps
in the kernel, and must not delay other workloads: one slow write sends all writes to threads for a while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from daemonkit.tasks import complete

T = TypeVar("T")

SLOW_SECONDS = 0.005
"""Seconds; after a longer write the disk counts as slow."""
SLOW_FOR_SECONDS = 5.0
"""Seconds for which the disk then counts as slow."""
THREADS = 8


class LogDisk:
    """Runs short writes; one instance serves all logs of a process."""

    def __init__(self) -> None:
        self._slow_until = float("-inf")
        self._threads: ThreadPoolExecutor | None = None

    @property
    def slow(self) -> bool:
        """Whether work goes to threads now."""
        return time.monotonic() < self._slow_until

    async def run(self, work: Callable[[], T]) -> T:
        """Do the work.  A cancelled caller waits for its end, because the work still uses its file."""
        if not self.slow:
            return self._timed(work)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="log")
        return await complete(asyncio.get_running_loop().run_in_executor(self._threads, self._timed, work))

    def _timed(self, work: Callable[[], T]) -> T:
        began = time.monotonic()
        try:
            return work()
        finally:
            now = time.monotonic()
            if now - began > SLOW_SECONDS:
                self._slow_until = now + SLOW_FOR_SECONDS
