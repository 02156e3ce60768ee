"""Reconciles recorded zones with the hypervisor's domains at the daemon's start.

``reconcile`` works in the background for each zone separately, and a silent or dead zone delays no other
zone.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from uuid import UUID

from daemonkit.checkpoints import checkpoint
from daemonkit.tasks import race
from protect.model.ports import ScratchDisks, ZoneVolumes
from protect.model.toolstack import DomainState, Toolstack
from protect.model.zone import Zone, ZoneState
from protect.state.daemon_lifetime import DaemonLifetime
from protect.state.death import Death, DeathKind
from protect.state.ledger import Ledger
from protect.state.registry import Registry
from protect.state.runtime import ZoneRuntime
from protect.workloads.exits import release_ended_volumes
from protect.zones.deaths import ZoneDeaths
from protect.zones.destroy import ZoneRemoval, find_domain
from protect.zones.recovery.adopt_zone import ZoneAdoption
from protect.zones.recovery.load_records import RecordedZone
from protect.zones.recovery.orphans import Orphans
from protect.zones.recovery.resync import Resync


@dataclass(frozen=True, slots=True)
class ZoneCleanup:
    """Frees the rest of zones whose domains have ended."""

    registry: Registry
    ledger: Ledger
    toolstack: Toolstack
    volumes: ZoneVolumes
    scratch: ScratchDisks
    deaths: ZoneDeaths
    resync: Resync

    async def mark_lost(self, runtime: ZoneRuntime) -> None:
        """Handle a zone without its domain, after a reboot of the host or a foreign destroy."""
        runtime.end.declare("its domain is gone")
        async with runtime.lock:
            lost = Death(DeathKind.VANISHED, self._cause_of_loss(runtime.zone))
            await self.deaths.mark_dead(runtime, lost)
            self.ledger.release(runtime.id)
        checkpoint("reconcile.marked-dead")
        await self.clean_up(runtime)

    def _cause_of_loss(self, zone: Zone) -> str:
        """Why a zone's domain is not there: a zone belongs to one boot of its host."""
        if zone.host_boot != self.registry.host_boot:
            return "the host was rebooted"
        return "its domain was gone when protectd started"

    async def clean_up(self, runtime: ZoneRuntime) -> None:
        """Free resources of a dead zone's domain, and finish deletions in the zone."""
        async with runtime.lock:
            domain = await find_domain(self.toolstack, runtime)
            if domain is not None:
                await self.toolstack.destroy(domain)
            await asyncio.to_thread(self.scratch.remove, runtime.id)
            if self.registry.zones.get(runtime.id) is runtime:
                self.ledger.release(runtime.id)
        await release_ended_volumes(self.volumes, runtime)
        await self.resync.finish_intents(runtime)


@dataclass(frozen=True, slots=True)
class Reconcile:
    """Brings recorded zones to a settled state."""

    registry: Registry
    toolstack: Toolstack
    lifetime: DaemonLifetime
    removal: ZoneRemoval
    orphans: Orphans
    cleanup: ZoneCleanup
    zone_adoption: ZoneAdoption

    async def reconcile(self, recorded: RecordedZone) -> None:
        """Bring a zone to a settled state: adopted, dead without a domain, or gone."""
        runtime = recorded.runtime
        match runtime.zone.state:
            case ZoneState.CREATING | ZoneState.DESTROYING:
                async with runtime.lock:
                    if self.registry.zones.get(runtime.id) is runtime:  # a caller may have destroyed the zone
                        await self.removal.dismantle(runtime)
                checkpoint("reconcile.undone")
            case ZoneState.DEAD:
                await self.cleanup.clean_up(runtime)
            case ZoneState.RUNNING if recorded.domain is None:
                await self.cleanup.mark_lost(runtime)
            case ZoneState.RUNNING if recorded.domain and recorded.domain.state is not DomainState.SHUTDOWN:
                stopping = self.lifetime.stopping.raised("use", f"zone {runtime.id}")
                await race(self.zone_adoption.adopt(recorded, recorded.domain), stopping)
                await self.zone_adoption.finish_connect(recorded)
            # The toolstack's deaths() reports a domain in SHUTDOWN.

    async def adopt_orphan(self, uuid: UUID) -> ZoneRuntime:
        """Make a zone of a domain without a record; connect in the background, as after a start."""
        runtime, domain = await self.orphans.adopt(uuid)
        if domain.state is DomainState.PAUSED:  # perhaps never unpaused
            await self.toolstack.unpause(domain.id)
            domain = replace(domain, state=DomainState.RUNNING)
        adopting = self.reconcile(RecordedZone(runtime, domain, None))
        self.lifetime.tasks.spawn(adopting, f"adopt zone {runtime.id}")
        return runtime
