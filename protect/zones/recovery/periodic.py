"""Reconciles zones and domains on a timer: finds unreported ends, and lost marks."""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

from daemonkit.faults import Fault
from daemonkit.logs import fields
from daemonkit.tasks import Background
from protect.config import Timeouts
from protect.model.toolstack import DomainDeath, DomainInfo, DomainState, ShutdownReason, Toolstack
from protect.model.zone import ZoneState
from protect.state.registry import Registry
from protect.state.runtime import ZoneRuntime
from protect.zones.deaths import ZoneDeaths
from protect.zones.reconcile import Reconcile
from protect.zones.recovery import mark
from protect.zones.recovery.load_records import RecordedZone
from protect.zones.recovery.orphans import unknown
from protect.zones.upkeep import pause

log = logging.getLogger(__name__)


class PeriodicReconcile:
    """Compares zones and domains periodically, and remembers logged orphans."""

    def __init__(
        self,
        registry: Registry,
        toolstack: Toolstack,
        tasks: Background,
        deaths: ZoneDeaths,
        reconcile: Reconcile,
        timeouts: Timeouts,
    ) -> None:
        self._registry = registry
        self._toolstack = toolstack
        self._tasks = tasks
        self._deaths = deaths
        self._reconcile = reconcile
        self._timeouts = timeouts
        self._orphans: set[UUID] = set()
        self._failing = False

    async def run(self) -> None:
        """Compare every ``timeouts.reconcile`` while the daemon runs."""
        while True:
            await asyncio.sleep(self._timeouts.reconcile)
            try:
                await self.look()
                self._failing = False
            except Fault as fault:
                # Draw no conclusions from a silent hypervisor.
                if not self._failing:
                    log.error("domains cannot be listed: %s", fault)
                self._failing = True

    async def look(self) -> None:
        """Compare once, without zones launched after the start of the listing."""
        before = [(runtime, runtime.paused) for runtime in self._registry.zones.values()]
        domains = {domain.uuid: domain for domain in await self._toolstack.list()}
        for runtime, paused in before:
            if self._registry.zones.get(runtime.id) is runtime:
                domain = domains.get(runtime.zone.uuid)
                await self._compare(runtime, domain)
                if domain and runtime.running and runtime.paused is paused and not runtime.lock.locked():
                    pause.seen(self._registry, runtime, domain)
        self._tell_of_orphans(list(domains.values()))

    async def _compare(self, runtime: ZoneRuntime, domain: DomainInfo | None) -> None:
        if runtime.running:
            await self._running(runtime, domain)
        elif runtime.lock.locked():
            pass  # a verb works on the zone
        elif runtime.zone.state is ZoneState.DESTROYING or (domain and runtime.zone.state is ZoneState.DEAD):
            log.warning("what failed before is tried again", extra=fields(zone=runtime.id))
            again = self._reconcile.reconcile(RecordedZone(runtime, domain, None))
            self._tasks.spawn(again, f"clean up zone {runtime.id}")

    async def _running(self, runtime: ZoneRuntime, domain: DomainInfo | None) -> None:
        """Handle an unreported end, or a lost mark.  ``on_death`` takes the zone's lock."""
        uuid = runtime.zone.uuid
        if domain is None:
            ended = ShutdownReason.DESTROYED
        elif domain.state is DomainState.SHUTDOWN:
            ended = domain.shutdown_reason or ShutdownReason.UNKNOWN
        else:
            if not domain.mark:
                await mark.restore(self._toolstack, runtime.zone)
            return
        log.warning("the end of a domain was noticed late", extra=fields(zone=runtime.id))
        dying = self._deaths.on_death(runtime, DomainDeath(uuid, ended))
        self._tasks.spawn(dying, f"mark zone {runtime.id} dead")

    def _tell_of_orphans(self, domains: list[DomainInfo]) -> None:
        """Log each orphan once."""
        now = {domain.uuid: domain for domain in unknown(self._registry, domains)}
        for uuid in now.keys() - self._orphans:
            told = fields(domain=now[uuid].id, name=now[uuid].name, marked=bool(now[uuid].mark))
            log.warning("unknown domain left alone", extra=told)
        self._orphans = set(now)
