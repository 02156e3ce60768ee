"""Concurrency of pulls: asyncio orders the steps, threads do what blocks or uses much CPU.

``WorkerThreads.run`` alone starts threads.  Its caller is cancelled like any other coroutine: the thread is
then told to stop by its ``CancelToken``, and the caller waits until it has.  The reasons:
docs/adr/0017-pull-concurrency.md.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Generic, TypeVar

from cri.images.errors import Cancelled
from daemonkit.tasks import complete

T = TypeVar("T")


class CancelToken:
    """Tells one thread to stop; the thread checks it at every chunk."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._unblocks: list[Callable[[], None]] = []

    def cancel(self) -> None:
        """Tell the thread to stop, and unblock the system call it may be in."""
        with self._lock:
            self._event.set()
            for unblock in self._unblocks:
                unblock()

    def check(self) -> None:
        """Raise Cancelled once the thread is to stop."""
        if self._event.is_set():
            raise Cancelled

    def passing(self, items: Iterable[T]) -> Iterator[T]:
        """The same items; raises Cancelled before the next one once the thread is to stop."""
        for item in items:
            self.check()
            yield item

    def sleep(self, seconds: float) -> None:
        """Sleep, or raise Cancelled at once."""
        self._event.wait(seconds)
        self.check()

    @contextmanager
    def unblocking(self, unblock: Callable[[], None]) -> Iterator[None]:
        """While the body runs, ``cancel`` also calls ``unblock``, which ends the body's system call.

        It is called in another thread, must not block, and is never called after the body.
        """
        with self._lock:
            self.check()
            self._unblocks.append(unblock)
        try:
            yield
        finally:
            with self._lock:
                self._unblocks.remove(unblock)


class WorkerThreads:
    """A bounded pool of threads whose work can be cancelled."""

    def __init__(self, most: int) -> None:
        self._pool = ThreadPoolExecutor(most, "image")

    async def run(self, work: Callable[[CancelToken], T]) -> T:
        """Run blocking work; when this raises CancelledError, the thread has stopped."""
        token = CancelToken()
        # Futures that wrap each other are cycles: a result in one would stay until the collector comes by,
        # and some take 100 MiB.
        result: list[T] = []
        failure: list[BaseException] = []

        def carry_out() -> None:
            try:
                result.append(work(token))
            except BaseException as error:
                failure.append(error)

        begun = self._pool.submit(carry_out)
        ended = asyncio.wrap_future(begun)
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError:
            token.cancel()
            # Work that still waits for a thread never begins.
            begun.cancel()
            await complete(asyncio.wait([ended]))
            raise
        if failure:
            raise failure.pop()
        return result.pop()

    def close(self) -> None:
        """Let the threads end; no work may be under way."""
        self._pool.shutdown()


class SingleFlight(Generic[T]):
    """Concurrent callers for one key share the work of the first.

    The work never outlives the caller that began it, since it uses what that one holds (leases, credentials):
    when that caller is cancelled, the next one begins anew.  A failure is everyone's.
    """

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[T]] = {}

    async def run(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the work for this key, from whoever does it."""
        while (running := self._running.get(key)) is not None:
            await asyncio.wait([running])
            if not running.cancelled():
                return running.result()
        task = self._running[key] = asyncio.create_task(work())
        task.add_done_callback(lambda _: self._running.pop(key))
        return await task


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """asyncio's TaskGroup that raises what failed first as it is, not in an ExceptionGroup."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from failed.exceptions[0].__cause__
