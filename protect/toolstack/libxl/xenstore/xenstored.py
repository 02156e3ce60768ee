"""Watches xenstored, and renews all connections after a restart.

Running domains do not need xenstored.  But the kernel's backends in dom0 and the guests have no connection to
a restarted xenstored, and know no node in it: running zones get no new devices until a reboot of the host.  A
notice tells the operator.  Zones are never ended for this reason.
"""

from __future__ import annotations

import asyncio
import logging

from protect.toolstack.libxl.deaths import DomainRegistry
from protect.toolstack.libxl.workers import Workers
from protect.toolstack.libxl.xenstore.store import AsyncStore
from xenbind.errors import XenError

log = logging.getLogger(__name__)

_PERIOD_SECONDS = 2.0
"""Seconds between two looks: nothing reports the end of xenstored."""
_PROBE = "/local/domain/0/name"


class Xenstored:
    """Knows whether xenstored answers, and moves all users to a restarted xenstored."""

    def __init__(self, store: AsyncStore, workers: Workers, registry: DomainRegistry) -> None:
        self._store = store
        self._workers = workers
        self._registry = registry
        self._restarts = 0
        self._lost = False

    def notices(self) -> tuple[str, ...]:
        """Notices for the operator."""
        if self._lost:
            return ("xenstored does not answer: zones go on, but none can be made or changed (start it)",)
        if self._restarts:
            return (
                "xenstored was restarted: zones that ran then go on, but get no disks or interfaces any "
                "more, nor do new ones (drain the node and reboot the host)",
            )
        return ()

    async def watch(self) -> None:
        """Look for as long as the toolstack runs."""
        while True:
            await asyncio.sleep(_PERIOD_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Look once; switch to a restarted xenstored, if any."""
        try:
            await self._store.read(_PROBE)
        except OSError as error:
            self._lose(error)
        if self._lost:
            try:
                await self._store.reconnect()
                self._workers.renew()
                await self._registry.renew()
            except (OSError, XenError) as error:
                log.debug("xenstored is not back: %s", error)
                return
            self._restarts += 1
            self._lost = False
            log.critical("xenstored was restarted: what it knew of zones is lost")
        self._registry.check()

    def _lose(self, error: OSError) -> None:
        if not self._lost:
            log.critical("xenstored does not answer; zones go on: %s", error)
            self._lost = True
            self._workers.hold()
