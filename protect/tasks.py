"""Background work of the daemon: nothing is lost, nothing runs unowned, nothing is half cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, TypeVar

from daemonkit.faults import Fault

log = logging.getLogger(__name__)

T = TypeVar("T")

_CUT = 5.0
"""Seconds that cancelled work has to come to its end."""


class Tasks:
    """Owns the tasks of a daemon."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run in the background; what goes wrong there is logged."""
        task = self._own(work, name)
        task.add_done_callback(_report)
        return task

    async def conduct(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Run for a caller who may go away: it is then cancelled once, and its undo runs to the end."""
        return await self._wait(self._own(work, name), cancel=True)

    async def see_through(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Run to its end, also when the caller goes away: what is begun is not left half done."""
        return await self._wait(self._own(work, name), cancel=False)

    async def _wait(self, task: asyncio.Task[T], *, cancel: bool) -> T:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                task.add_done_callback(_report)
                if cancel:
                    task.cancel()
            raise

    async def close(self, timeout: float) -> None:
        """Wait for what is under way; cancel what takes longer than ``timeout`` seconds.

        A step that must not be cut gets a little longer; what it waits for is closed next.
        """
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)
        leftover = list(self._tasks)
        for task in leftover:
            task.cancel()
        if leftover:
            ended, _ = await asyncio.wait(leftover, timeout=_CUT)
            for task in ended:
                # Retrieved: whoever wanted it has gone.
                if not task.cancelled():
                    task.exception()

    def _own(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def whole(work: Awaitable[T]) -> T:
    """Run a step that must not be cut: when cancelled, let it end first."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await over(task)
        raise


async def over(task: asyncio.Future[Any]) -> None:
    """Wait for its end, however often the caller is cancelled meanwhile; what it failed with is not wanted.

    Who is told of a cancellation must be able to rely on it that nothing goes on behind him: he may be about
    to undo it.
    """
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if not task.cancelled():
        task.exception()
    if cancelled:
        raise asyncio.CancelledError


async def side_by_side(steps: Iterable[Awaitable[None]]) -> None:
    """All at once; the first failure is raised when every one has ended."""
    for result in await asyncio.gather(*steps, return_exceptions=True):
        if result is not None:
            raise result


async def undone(undo: Coroutine[Any, Any, None], name: str) -> None:
    """Undo after a failure: its own failure is logged, and does not hide what it was for."""
    try:
        await undo
    except Fault as fault:
        log.error("%s is not wholly undone: %s", name, fault)


def _report(task: asyncio.Task[Any]) -> None:
    if task.cancelled():
        return
    error = task.exception()
    if isinstance(error, Fault):
        log.warning("%s: %s", task.get_name(), error)
    elif error is not None:
        log.error("%s failed", task.get_name(), exc_info=error)
