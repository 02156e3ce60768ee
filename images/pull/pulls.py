"""The pulls and imports under way; each is done once for all its callers, within deadlines."""

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
from images.errors import disk_full
from images.pull.progress import Progress, Snapshot
from images.settings import ImageSettings

log = logging.getLogger(__name__)
T = TypeVar("T")
Work: TypeAlias = Callable[[Progress], Coroutine[Any, Any, T]]
MAX_PULLS = 32
"""Most pulls at once, of which the images of one registry have half; more wait for their turn."""


class Pulls:
    """Concurrent callers of one key share one pull; it is cancelled when the last of them goes away."""

    def __init__(self, settings: ImageSettings) -> None:
        self._settings = settings
        self._turns = FairSlots(MAX_PULLS)
        self._current: dict[Hashable, _Pull] = {}
        # Those that were cancelled, too, until they have ended.
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
        """The result of the pull for this key, which is started if it is not running.

        name: what is pulled, for messages; watch: called at once with the pull's progress; registry: in whose
        share of every pool the work is done, "": that of this host.
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
        """Cancel all pulls and wait until nothing of them is left."""
        for task in self._tasks:
            task.cancel()
        await self.drain()

    async def drain(self) -> None:
        """Wait until all pulls have ended, the cancelled ones too."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def snapshots(self) -> list[Snapshot]:
        """All that are under way, the oldest first."""
        found = (pull.progress.snapshot() for pull in self._current.values())
        return sorted(found, key=lambda snapshot: snapshot.started_at)

    def next_change(self) -> asyncio.Event:
        """An event that is set as soon as a pull begins or ends."""
        return self._changed

    def _begin(self, key: Hashable, name: str, work: Work[Any], registry: str) -> _Pull:
        progress = Progress(name)
        with on_behalf_of(registry):
            # The task, and each that it starts, has a copy of the context.
            pull = _Pull(progress, asyncio.create_task(self._timed(work, progress, registry)))
        self._current[key] = pull
        self._tasks.add(pull.task)
        pull.task.add_done_callback(partial(self._ended, key, pull))
        self._announce()
        return pull

    async def _timed(self, work: Work[T], progress: Progress, registry: str) -> T:
        """The work with its deadlines, and with the system's errors as Faults."""
        name, seconds = progress.name, self._settings.pull_seconds
        loop = asyncio.get_running_loop()
        started, begun = loop.time(), False
        try:
            async with asyncio.timeout(seconds) as deadline, self._turns.slot(registry):
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
        """Raise TooLate when a pull that should move bytes has moved none for one to two stall times."""
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
        # Retrieved, or asyncio complains: perhaps no caller is left to look at it.
        if not task.cancelled():
            task.exception()

    def _forget(self, key: Hashable, pull: _Pull) -> None:
        """Forget a key, so that the next caller begins anew."""
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
