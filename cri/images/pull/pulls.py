"""Long work that several callers may wait for: done once, watched, and called off when nobody waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from cri.images.cancel import Cancel
from cri.images.errors import Cancelled, disk_full
from cri.images.pull.progress import Job, Progress, Snapshot
from cri.images.settings import ImageSettings
from daemonkit.disk_space import is_full
from daemonkit.faults import Broken, Fault, TooLate, Unreachable

log = logging.getLogger(__name__)
T = TypeVar("T")
MAX_FLIGHTS = 32


class Flights:
    """Everything that is being pulled or imported."""

    def __init__(self, settings: ImageSettings) -> None:
        self._settings = settings
        self._threads = ThreadPoolExecutor(MAX_FLIGHTS, "image")
        self._flights: dict[Hashable, _Flight] = {}
        self._closing: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Event()

    async def stop(self) -> None:
        """Calls all off and waits until nothing of them is left."""
        for flight in list(self._flights.values()):
            flight.job.cancel.set()
        await self.settle()
        self._threads.shutdown()

    @property
    def busy(self) -> bool:
        """Whether anything is under way, or being cleared away after that."""
        return bool(self._flights or self._closing)

    async def settle(self) -> None:
        """Waits until all have ended, also those that were called off."""
        tasks = {flight.task for flight in self._flights.values()} | self._closing
        await asyncio.gather(*tasks, return_exceptions=True)

    def snapshots(self) -> list[Snapshot]:
        """All that are under way, the oldest first."""
        found = (flight.job.progress.snapshot() for flight in self._flights.values())
        return sorted(found, key=lambda snapshot: snapshot.started_at)

    def next_change(self) -> asyncio.Event:
        """Is set as soon as one more, or one less, is under way than now."""
        return self._changed

    async def shared(
        self,
        key: Hashable,
        name: str,
        work: Callable[[Job], T],
        told: Callable[[Progress], None] = lambda _: None,
    ) -> T:
        """Work for a key; it is called off when the last of its callers goes away.

        name: what is worked on, for people; told: is given its progress before anything is waited for.
        """
        flight = self._flights.get(key)
        if flight is None or flight.job.cancel.is_set:
            job = Job(Cancel(), Progress(name))
            flight = _Flight(job, asyncio.create_task(self._fly(work, job)))
            self._flights[key] = flight
            flight.task.add_done_callback(partial(self._landed, key, flight))
            self._tell()
        told(flight.job.progress)
        flight.waiters += 1
        try:
            result: T = await asyncio.shield(flight.task)
            return result
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done():
                flight.job.cancel.set()
                self._closing.add(flight.task)
                flight.task.add_done_callback(self._closing.discard)

    async def _fly(self, work: Callable[[Job], T], job: Job) -> T:
        name, loop = job.progress.name, asyncio.get_running_loop()
        started = loop.time()
        watch = asyncio.create_task(self._watch(job))
        try:
            result = await loop.run_in_executor(self._threads, lambda: _translated(name, work, job))
        except Cancelled:
            if watch.done() and not watch.cancelled():
                raise TooLate("pull", name, watch.result()) from None
            raise Unreachable("pull", name, "it was called off", "xenpod-cri stops; try again") from None
        finally:
            watch.cancel()
        log.info("pull %s: done in %.2f s", name, loop.time() - started)
        return result

    async def _watch(self, job: Job) -> str:
        """Calls the work off when it takes too long, or does not move; says why."""
        settings, progress = self._settings, job.progress
        try:
            async with asyncio.timeout(settings.pull_seconds):
                await _standstill(progress, settings.pull_stall_seconds)
                cause = f"nothing of it moved for {settings.pull_stall_seconds:.0f} s"
        except TimeoutError:
            cause = f"it took longer than {settings.pull_seconds:.0f} s"
        job.cancel.set()
        return cause

    def _landed(self, key: Hashable, flight: _Flight, _: asyncio.Task[Any]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
            self._tell()
        # Nobody may be left to look at the outcome.
        if not flight.task.cancelled():
            flight.task.exception()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class _Flight:
    def __init__(self, job: Job, task: asyncio.Task[Any]) -> None:
        self.job = job
        self.task = task
        self.waiters = 0


async def _standstill(progress: Progress, seconds: float) -> None:
    """Waits until bytes should be moving, and have not for so long (seen after twice as long, at most)."""
    before: int | None = None
    while True:
        now = progress.moved if progress.active else None
        if now is not None and now == before:
            return
        before = now
        await asyncio.sleep(seconds)


def _translated(name: str, work: Callable[[Job], T], job: Job) -> T:
    """The work with the system's errors told as Faults."""
    try:
        return work(job)
    except (Fault, Cancelled):
        raise
    except OSError as error:
        if is_full(error):
            raise disk_full("pull", name) from error
        raise Broken("pull", name, str(error)) from error
