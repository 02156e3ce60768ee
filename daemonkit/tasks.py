"""Owns cancellation: the only module that shields, waits out or cancels other work.

The rule: **code that begins work which must not stay half done also finishes it; callers never wrap.**

- A port (the toolstack, the agent's client, volumes, a store, a CNI plugin) passes each step with effects to
  ``complete``.  When its method raises CancelledError, the step has ended, and the caller may undo it.
- A verb is plain code: steps, and an undo registered before each step that may half succeed.
- The gRPC server runs each handler in a task of ``Background.run``: a departing client cancels the task once,
  and its undo runs to the end.

asyncio's own TaskGroup, timeout and Lock are used directly.  The reasons: docs/adr/0015-cancellation.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, TypeVar

from daemonkit.faults import Fault
from daemonkit.loop import fair_scheduler

log = logging.getLogger(__name__)

T = TypeVar("T")
U = TypeVar("U")

_CANCELLED_WORK_SECONDS = 5.0
"""Seconds for which ``Background.close`` waits for cancelled work."""


async def complete(work: Awaitable[T]) -> T:
    """Run ``work`` to its end, through any number of cancellations of the caller.

    Raises the cancellation once the work has ended; a failure of the work is then only logged.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    _log_failure(task)
    raise cancelled


async def complete_all(works: Iterable[Awaitable[T]]) -> list[T]:
    """Run all concurrently, each to its end, even if the caller is cancelled.

    All results in order, or the first failure in order (raised once everything has ended).
    """
    results = await complete(asyncio.gather(*works, return_exceptions=True))
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


async def gather(first: Awaitable[T], second: Awaitable[U]) -> tuple[T, U]:
    """Run two concurrently.  If one fails or the caller is cancelled, cancel the rest and wait for its end.

    Raises the first failure.
    """
    tasks = (_begun(first), _begun(second))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
        return tasks[0].result(), tasks[1].result()
    finally:
        await _end_tasks(*tasks)


async def race(work: Awaitable[T], other: Awaitable[U]) -> T | U:
    """Run both until one ends; returns or raises its outcome, after cancelling and awaiting the other.

    If both end at once, ``work`` counts.
    """
    tasks = (_begun(work), _begun(other))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        winner = tasks[0] if tasks[0].done() else tasks[1]
    finally:
        await _end_tasks(*tasks)
    return winner.result()


async def join(work: Awaitable[T]) -> T:
    """Wait for work that continues without the caller: cancelling the caller does not cancel the work.

    For work with several waiters, and for threads, because a thread cannot be cancelled.  The owner of the
    work has to handle its failure.
    """
    return await asyncio.shield(work)


class Background:
    """Owns the tasks of a daemon: none is lost, and ``close`` waits for all."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run in the background; a failure is logged under ``name``."""
        task = self._own(work, name)
        task.add_done_callback(_log_failure)
        return task

    async def run(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Run for a caller who may leave: cancellation then cancels the work once, and its undo runs to the
        end.

        The caller does not wait for the undo; a failure of the undo is logged.
        """
        task = self._own(work, name)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                task.add_done_callback(_log_failure)
                task.cancel()
            raise

    async def close(self, timeout: float) -> None:
        """Wait ``timeout`` seconds for running tasks, then cancel the rest and wait a little longer."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)
        leftover = list(self._tasks)
        for task in leftover:
            task.cancel()
        if leftover:
            ended, _ = await asyncio.wait(leftover, timeout=_CANCELLED_WORK_SECONDS)
            for task in ended:
                # Retrieve the exception: the caller has gone, and asyncio would log a warning.
                if not task.cancelled():
                    task.exception()

    def _own(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(fair_scheduler.paid(work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _begun(work: Awaitable[T]) -> asyncio.Future[T]:
    return asyncio.ensure_future(fair_scheduler.paid(work) if asyncio.iscoroutine(work) else work)


async def _end_tasks(*tasks: asyncio.Future[Any]) -> None:
    """Cancel running tasks, and wait for their end even if the caller is cancelled again."""
    for task in tasks:
        task.cancel()
    await complete(asyncio.gather(*tasks, return_exceptions=True))


def _log_failure(task: asyncio.Future[Any]) -> None:
    if task.cancelled():
        return
    error = task.exception()
    name = task.get_name() if isinstance(task, asyncio.Task) else "background work"
    if isinstance(error, Fault):
        log.warning("%s: %s", name, error)
    elif error is not None:
        log.error("%s failed", name, exc_info=error)
