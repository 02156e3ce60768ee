"""Removes backends in xenstore whose domain is gone.  No other program removes them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from daemonkit.logs import fields
from protect.toolstack.libxl.config import NO_SCRIPT
from protect.toolstack.libxl.workers import Workers
from protect.toolstack.libxl.xenstore.store import AsyncStore
from xenbind import domain as xen
from xenbind.xenstore import Xenstore

log = logging.getLogger(__name__)

_ALL = "/local/domain/0/backend"
_INTERVAL_SECONDS = 60.0
"""Seconds between two looks."""


class Backends:
    """Backends of disks and interfaces.

    The destroyer of a domain first lists its devices, and last removes the domain's nodes.  A disk attached
    in between keeps its backend, and dom0's kernel keeps the device behind it.  A later attach even creates
    the domain's own nodes again.
    """

    def __init__(self, workers: Workers, store: AsyncStore) -> None:
        self._workers = workers
        self._store = store
        self._due = 0.0

    async def look(self) -> None:
        """Remove the leftovers of zones, if a look is due."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _INTERVAL_SECONDS
        try:
            await self.remove_left()
        except OSError as error:  # for example, xenstored does not answer
            log.warning("backends that zones have left cannot be removed: %s", error)

    async def remove_left(self) -> None:
        """Remove the backends of zones without a domain.  OSError."""
        # Before the domains: a new domain exists before its backends.
        listed = await self._store.ask(_listed)
        domains = {info.domid for info in await self._workers.ask(xen.domains)}
        if gone := {path: domid for path, domid in listed.items() if domid not in domains}:
            await self._store.ask(_remove, gone)


def _listed(store: Xenstore) -> Mapping[str, int]:
    """The path of each domain's backends, by kind, and the domain's number."""
    return {
        f"{_ALL}/{kind}/{number}": int(number)
        for kind in store.list(_ALL)
        for number in store.list(f"{_ALL}/{kind}")
        if number.isdecimal()
    }


def _remove(store: Xenstore, gone: Mapping[str, int]) -> None:
    for path, domid in gone.items():
        scripts = [store.read(f"{path}/{device}/script") for device in store.list(path)]
        # Devices of other virtual machines have real scripts.
        if scripts and all(script == NO_SCRIPT.encode() for script in scripts):
            log.warning("backend of a domain that is gone: removed", extra=fields(path=path))
            # The backend last: the next look finds the other nodes by the backend.
            for left in (f"/libxl/{domid}", f"/local/domain/{domid}", path):
                store.remove(left)
