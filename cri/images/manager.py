"""Images for an event loop: the blocking work runs in threads, and ends when nobody waits for it."""

from __future__ import annotations

import asyncio
import errno
import logging
import platform as machine
import sqlite3
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from cri.images.cancel import Cancel
from cri.images.catalogue import Image
from cri.images.credentials import Credentials
from cri.images.errors import Cancelled
from cri.images.files import Usage
from cri.images.manifests import Platform
from cri.images.names import Reference
from cri.images.places import registry_places
from cri.images.pull import Puller
from cri.images.settings import ImageSettings
from cri.images.store import ImageStore
from daemonkit.faults import Broken, Exhausted, Fault, TooLate, Unreachable

log = logging.getLogger(__name__)
T = TypeVar("T")
MAX_PULLS = 32
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm"}


def this_platform() -> Platform:
    """The platform zones on this host run."""
    return Platform("linux", _MACHINES.get(machine.machine(), machine.machine()))


class ImageManager:
    """The image part of the daemon. Make it, then start() (which sweeps), then serve; stop() at the end."""

    def __init__(self, settings: ImageSettings) -> None:
        self.settings = settings
        self.store = ImageStore(settings)
        self.puller = Puller(self.store, settings, this_platform())
        self._threads = ThreadPoolExecutor(MAX_PULLS, "image")
        self._flights: dict[Hashable, _Flight] = {}
        self._closing: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Sweeps what a killed run left."""
        await self.run(self.store.open)

    async def stop(self) -> None:
        """Calls all pulls off and waits until nothing of them is left."""
        for flight in list(self._flights.values()):
            flight.cancel.set()
        await self.settle()
        self._threads.shutdown()
        self.store.close()

    @property
    def busy(self) -> bool:
        """Whether anything is being pulled or imported, or cleared away after that."""
        return bool(self._flights or self._closing)

    async def settle(self) -> None:
        """Waits until all pulls have ended, also those that were called off."""
        tasks = {flight.task for flight in self._flights.values()} | self._closing
        await asyncio.gather(*tasks, return_exceptions=True)

    async def pull(self, reference: Reference, credentials: Credentials) -> Image:
        """The image a name stands for at its registry now, ready to run."""
        # Who may not pull an image must not get it by asking at the same time as one who may.
        key = (str(reference), credentials.fingerprint())

        def work(cancel: Cancel) -> Image:
            return self.puller.pull(reference, registry_places(reference, credentials, self.settings), cancel)

        return await self.shared(key, f"pull {reference}", work)

    async def remove(self, name_or_id: str) -> None:
        """Removes an image with all its names."""
        await self.run(lambda: self.store.remove(name_or_id))

    async def usage(self) -> Usage:
        """What the store takes on the disk."""
        return await self.run(self.store.files.usage)

    async def run(self, work: Callable[[], T]) -> T:
        """Short blocking work in a thread."""
        return await asyncio.get_running_loop().run_in_executor(None, work)

    async def shared(self, key: Hashable, what: str, work: Callable[[Cancel], T]) -> T:
        """Long work that several callers may wait for; it is called off when the last of them goes away."""
        flight = self._flights.get(key)
        if flight is None or flight.cancel.is_set:
            cancel = Cancel()
            flight = _Flight(cancel, asyncio.create_task(self._fly(what, work, cancel)))
            self._flights[key] = flight
            flight.task.add_done_callback(partial(self._landed, key, flight))
        flight.waiters += 1
        try:
            result: T = await asyncio.shield(flight.task)
            return result
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done():
                flight.cancel.set()
                self._closing.add(flight.task)
                flight.task.add_done_callback(self._closing.discard)

    async def _fly(self, what: str, work: Callable[[Cancel], T], cancel: Cancel) -> T:
        loop = asyncio.get_running_loop()
        late = loop.call_later(self.settings.pull_seconds, cancel.set)
        started = loop.time()
        try:
            result = await loop.run_in_executor(self._threads, lambda: _translated(what, work, cancel))
        except Cancelled:
            if loop.time() - started >= self.settings.pull_seconds:
                raise TooLate(what, "", f"it took longer than {self.settings.pull_seconds:.0f} s") from None
            raise Unreachable(what, "", "it was called off", "xenpod-cri stops; try again") from None
        finally:
            late.cancel()
        log.info("%s: done in %.2f s", what, loop.time() - started)
        return result

    def _landed(self, key: Hashable, flight: _Flight, _: asyncio.Task[Any]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
        # Nobody may be left to look at the outcome.
        if not flight.task.cancelled():
            flight.task.exception()


class _Flight:
    def __init__(self, cancel: Cancel, task: asyncio.Task[Any]) -> None:
        self.cancel = cancel
        self.task = task
        self.waiters = 0


def _translated(what: str, work: Callable[[Cancel], T], cancel: Cancel) -> T:
    """The work with the system's errors told as Faults."""
    try:
        return work(cancel)
    except (Fault, Cancelled):
        raise
    except (OSError, sqlite3.OperationalError) as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if full or "full" in str(error):
            raise Exhausted(what, "", "the disk is full", "free space under the state directory") from error
        raise Broken(what, "", str(error)) from error
