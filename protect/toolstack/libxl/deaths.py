"""The domains of zones, and their ends as libxl reports them.  Other virtual machines are not included."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Container
from dataclasses import dataclass, field
from itertools import count
from uuid import UUID

from protect.model.toolstack import DomainDeath, ShutdownReason
from protect.toolstack.deaths import Deaths
from xenbind.domain import Shutdown
from xenbind.domain_ends import DeathWatcher, DomainEnd

log = logging.getLogger(__name__)

REASONS = {
    Shutdown.POWEROFF: ShutdownReason.POWEROFF,
    Shutdown.REBOOT: ShutdownReason.REBOOT,
    Shutdown.CRASH: ShutdownReason.CRASH,
    Shutdown.WATCHDOG: ShutdownReason.CRASH,
}


@dataclass(slots=True)
class Known:
    """A watched domain; ``reason`` is set at its end."""

    domid: int
    uuid: UUID
    name: str
    watch: int
    mark: str = ""
    reason: ShutdownReason | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during device changes and destruction."""
    abandoned: asyncio.Event = field(default_factory=asyncio.Event)
    """The domain has ended, or will soon: stop waiting for its guest."""
    forgotten: bool = False
    """Whether the domain has been destroyed; its number may then belong to another domain."""


class DomainRegistry:
    """Known domains by number.  ``on_end`` is called in the loop, once for each end."""

    def __init__(self, on_end: Callable[[Known], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_end = on_end
        self._numbers = count(1)
        self._domains: dict[int, Known] = {}
        self._deaths = Deaths()
        self._broken: Exception | None = None
        self._watcher = DeathWatcher(self._from_thread, self._failed)

    def add(self, domid: int, uuid: UUID, name: str, mark: str = "") -> None:
        """Watch a domain, unless already watched."""
        known = self._domains.get(domid)
        if known is not None and known.uuid == uuid:
            known.mark = known.mark or mark
            return
        known = self._domains[domid] = Known(domid, uuid, name, next(self._numbers), mark)
        self._watcher.watch(domid, known.watch)

    def domids(self) -> list[int]:
        """The numbers of all known domains."""
        return list(self._domains)

    def names(self) -> list[str]:
        """The names of all known domains."""
        return [known.name for known in self._domains.values()]

    def uuids(self) -> set[UUID]:
        """The uuids of all known domains."""
        return {known.uuid for known in self._domains.values()}

    def vanished(self, missing: Container[UUID]) -> list[Known]:
        """The known domains in ``missing``: other programs destroyed them."""
        return [known for known in self._domains.values() if known.uuid in missing]

    def get(self, domid: int) -> Known | None:
        return self._domains.get(domid)

    def remove(self, domid: int) -> None:
        """Remove a destroyed domain; tell the listeners, unless they know of its end."""
        known = self._domains.pop(domid, None)
        if known is not None:
            known.forgotten = True
            self._end(known, ShutdownReason.DESTROYED)

    def reconnected(self, domid: int) -> None:
        """Report a domain that tried to shed its disk rates; the listeners then end it."""
        if known := self._domains.get(domid):
            self._end(known, ShutdownReason.RECONNECTED)

    def listen(self) -> AsyncIterator[DomainDeath]:
        """Listen for deaths from now on; the known dead domains come first."""
        return self._deaths.listen(
            DomainDeath(known.uuid, known.reason)
            for known in self._domains.values()
            if known.reason is not None
        )

    async def renew(self) -> None:
        """Watch through a new connection to xenstored; all marks are lost.  Ends may be reported twice."""
        stale, self._broken = self._watcher, None
        self._watcher = await asyncio.to_thread(DeathWatcher, self._from_thread, self._failed)
        await asyncio.to_thread(stale.close)
        for known in self._domains.values():
            known.mark = ""
            if known.reason is None:
                self._watcher.watch(known.domid, known.watch)

    def close(self) -> None:
        """Close the registry, and wait for the watcher's thread."""
        self._watcher.close()
        self._deaths.close()

    def _from_thread(self, ended: DomainEnd) -> None:
        self._loop.call_soon_threadsafe(self._heard, ended)

    def _heard(self, ended: DomainEnd) -> None:
        known = self._domains.get(ended.domid)
        if known is None or known.watch != ended.user:
            return  # an earlier domain with the same number
        if ended.reason is None:
            self._end(known, ShutdownReason.DESTROYED)
        elif ended.reason is not Shutdown.SUSPEND:
            self._end(known, REASONS.get(ended.reason, ShutdownReason.UNKNOWN))

    def _end(self, known: Known, reason: ShutdownReason) -> None:
        if known.reason is None:
            known.reason = reason
            known.ended.set()
            known.abandoned.set()
            self._on_end(known)
            self._deaths.tell(DomainDeath(known.uuid, reason))

    def check(self) -> None:
        """Close every listener if libxl reports no more ends, although xenstored answers.

        Otherwise zones would seem to live for ever.  A restart of the daemon may repair the watch.
        """
        if self._broken is not None:
            log.critical("libxl reports no more ends of domains: %s", self._broken)
            self._deaths.close()

    def _failed(self, error: Exception) -> None:
        self._broken = error
