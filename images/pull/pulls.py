"""The pulls and imports under way; all callers of a key share the work, within deadlines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, NoReturn, TypeAlias, TypeVar

from daemonkit.faults import Broken, TooLate, Unreachable
from daemonkit.host.disk_space import is_full
from daemonkit.observe.steps import step
from daemonkit.shares import FairSlots
from daemonkit.tasks import race
from images.concurrency import on_behalf_of
from images.image_errors import disk_full
from images.image_settings import ImageSettings
from images.pull.progress import Progress, Snapshot

log = logging.getLogger(__name__)
T = TypeVar("T")
Work: TypeAlias = Callable[[Progress], Coroutine[Any, Any, T]]
MAX_PULLS = 32
"""Limit of concurrent pulls; the images of a registry get half. Further pulls wait."""


class Pulls:
    """Concurrent callers of a key share a pull. Cancels the pull when the last caller leaves."""

    def __init__(self, settings: ImageSettings) -> None:
        self._settings = settings
        self._slots = FairSlots(MAX_PULLS)
        self._current: dict[Hashable, _Pull] = {}
        # Includes cancelled tasks until they end.
        self._tasks: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Event()

    async def run(
        self,
        key: Hashable,
        name: str,
        work: Work[T],
        watch: Callable[[Progress], None] = lambda _: None,
        registry: str = "",
    ) -> T:
        """The result of the pull for this key, started now unless already running.

        name: the image, for messages; watch: called at once with the pull's progress; registry: its share of
        every pool pays for the work, "": this host's share.
        """
        pull = self._current.get(key)
        if pull is None:
            pull = self._begin(key, name, work, registry)
        watch(pull.progress)
        pull.callers += 1
        try:
            await asyncio.wait([pull.task])
        finally:
            pull.callers -= 1
            if not pull.callers:
                self._forget(key, pull)
                pull.task.cancel()
        if pull.task.cancelled():
            raise Unreachable("pull", name, "it was called off", "xenpod-cri stops; try again")
        result: T = pull.task.result()
        return result

    async def stop(self) -> None:
        """Cancel all pulls and wait for their end."""
        for task in self._tasks:
            task.cancel()
        await self.drain()

    async def drain(self) -> None:
        """Wait until all pulls end, cancelled pulls included."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def snapshots(self) -> list[Snapshot]:
        """All pulls under way, oldest first."""
        found = (pull.progress.snapshot() for pull in self._current.values())
        return sorted(found, key=lambda snapshot: snapshot.started_at)

    def next_change(self) -> asyncio.Event:
        """An event set at the next begin or end of a pull."""
        return self._changed

    def _begin(self, key: Hashable, name: str, work: Work[Any], registry: str) -> _Pull:
        progress = Progress(name)
        with on_behalf_of(registry):
            # The task and all child tasks copy this context.
            pull = _Pull(progress, asyncio.create_task(self._timed(work, progress, registry)))
        self._current[key] = pull
        self._tasks.add(pull.task)
        pull.task.add_done_callback(partial(self._ended, key, pull))
        self._announce()
        return pull

    async def _timed(self, work: Work[T], progress: Progress, registry: str) -> T:
        """The work with deadlines; system errors become Faults."""
        name, seconds = progress.name, self._settings.pull_seconds
        loop = asyncio.get_running_loop()
        started, begun = loop.time(), False
        try:
            async with asyncio.timeout(seconds) as deadline, self._slots.slot(registry):
                begun = True
                with step("image.pull", image=name):
                    result = await race(work(progress), self._standstill(progress))
        except OSError as error:
            if deadline.expired():
                raise TooLate("pull", name, _late(seconds, registry if not begun else None)) from None
            if is_full(error):
                raise disk_full("pull", name) from error
            raise Broken("pull", name, str(error)) from error
        log.info("pull %s: done in %.2f s", name, loop.time() - started)
        return result

    async def _standstill(self, progress: Progress) -> NoReturn:
        """Raise TooLate if an active pull moves no bytes for one to two stall times."""
        seconds = self._settings.pull_stall_seconds
        before: int | None = None
        while True:
            now = progress.moved if progress.active else None
            if now is not None and now == before:
                raise TooLate("pull", progress.name, f"nothing of it moved for {seconds:.0f} s")
            before = now
            await asyncio.sleep(seconds)

    def _ended(self, key: Hashable, pull: _Pull, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._forget(key, pull)
        # Retrieve the exception: without callers, asyncio would log a warning.
        if not task.cancelled():
            task.exception()

    def _forget(self, key: Hashable, pull: _Pull) -> None:
        """Forget a key; the next caller begins a new pull."""
        if self._current.get(key) is pull:
            del self._current[key]
            self._announce()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _late(seconds: float, waiting: str | None) -> str:
    if waiting is None:
        return f"it took longer than {seconds:.0f} s"
    share = f"other images of {waiting or 'this host'} have its share of the {MAX_PULLS} pulls at once"
    return f"it did not begin within {seconds:.0f} s: {share}"


class _Pull:
    def __init__(self, progress: Progress, task: asyncio.Task[Any]) -> None:
        self.progress = progress
        self.task = task
        self.callers = 0
