"""Concurrency of pulls: asyncio orders the steps, threads do work that blocks or uses much CPU.

``WorkerThreads.run`` alone starts threads.  A cancelled caller tells the thread to stop by a ``CancelToken``,
and waits for the thread's end.  The reasons: docs/adr/0017-pull-concurrency.md.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, Generic, TypeVar

from daemonkit.tasks import complete
from images.bounds.cancel import CancelToken

T = TypeVar("T")
# A context variable, because all steps of a pull need it: each step inherits it from the pull's task.
_tenant: ContextVar[str] = ContextVar("tenant", default="")


@contextmanager
def on_behalf_of(tenant: str) -> Iterator[None]:
    """Count the work of the body, and of its new tasks, as this tenant's."""
    before = _tenant.set(tenant)
    try:
        yield
    finally:
        _tenant.reset(before)


def tenant() -> str:
    """The tenant of the current work: the registry of a pull's image; "": the operator, or this host."""
    return _tenant.get()


class WorkerThreads:
    """A bounded pool of threads for cancellable work."""

    def __init__(self, most: int) -> None:
        self._pool = ThreadPoolExecutor(most, "image")

    async def run(self, work: Callable[[CancelToken], T]) -> T:
        """Run blocking work for the current tenant; if this raises CancelledError, the thread has stopped."""
        token = CancelToken()
        # Futures that refer to each other are cycles: a result in a future would stay until garbage
        # collection, and some results take 100 MiB.
        result: list[T] = []
        failure: list[BaseException] = []

        def carry_out() -> None:
            try:
                result.append(work(token))
            except BaseException as error:
                forget_frames(error)
                failure.append(error)

        begun = self._pool.submit(copy_context().run, carry_out)
        ended = asyncio.wrap_future(begun)
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError:
            token.cancel()
            # Work still in the queue never begins.
            begun.cancel()
            await complete(asyncio.wait([ended]))
            raise
        if failure:
            raise failure.pop()
        return result.pop()

    def close(self) -> None:
        """Let the threads end; no work may be under way."""
        self._pool.shutdown()


def forget_frames(error: BaseException) -> None:
    """Clear the local variables of all calls in an error's traceback, and in the errors before it.

    An error and a call with the error in a variable are a cycle. The collector frees cycles late, and until
    then the variables of all calls stay: for example, a document of 4 MiB.
    """
    left: list[BaseException | None] = [error]
    # A cause is mostly the context, too, and ``raise from`` can make a circle.
    seen = set[int]()
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            left += (one.__cause__, one.__context__)


class SingleFlight(Generic[T]):
    """Concurrent callers for a key share the result of the first.

    The work never outlives its first caller, because the work uses the caller's leases and credentials: after
    a cancellation, the next caller begins again.  A failure is not shared, because the first caller may be
    hostile: the other callers then do the work themselves, in parallel, and no caller waits twice.
    """

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[T]] = {}

    async def run(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the work for this key, from any caller; failures only from this caller's work."""
        while (running := self._running.get(key)) is not None:
            await asyncio.wait([running])
            if running.cancelled():
                continue
            if running.exception() is not None:
                return await work()
            return running.result()
        task = self._running[key] = asyncio.create_task(work())
        task.add_done_callback(lambda _: self._running.pop(key))
        return await task


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """asyncio's TaskGroup, but raises the first failure itself instead of an ExceptionGroup."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from failed.exceptions[0].__cause__
