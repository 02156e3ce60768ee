"""Fills the registry from the store at the daemon's start: quickly, because serving begins afterwards."""

from __future__ import annotations

import logging
from collections.abc import Container
from dataclasses import dataclass

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault
from daemonkit.logs import fields
from protect.model.ports import ScratchDisks, ZoneVolumes
from protect.model.toolstack import DomainInfo, Toolstack
from protect.model.zone import ZoneState
from protect.state.ledger import Ledger
from protect.state.registry import Registry
from protect.state.runtime import WorkloadRuntime, ZoneRuntime
from protect.state.store import Intent, Saved
from protect.state.zone_dirs import ZoneDirs
from protect.zones.capacity.host_memory import MemorySampler, reservation_promise, zone_promise
from protect.zones.recovery import mark
from protect.zones.recovery.orphans import unknown
from protect.zones.size import sizing

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecordedZone:
    """A recorded zone, its domain if any, and the interrupted operation."""

    runtime: ZoneRuntime
    domain: DomainInfo | None
    intent: Intent | None


@dataclass(frozen=True, slots=True)
class RecordLoader:
    """Fills the registry from the store."""

    registry: Registry
    ledger: Ledger
    toolstack: Toolstack
    sampler: MemorySampler
    volumes: ZoneVolumes
    scratch: ScratchDisks
    dirs: ZoneDirs

    async def load(self) -> list[RecordedZone]:
        """Fill the registries from the store."""
        saved = self.registry.store.load()
        domains = {domain.uuid: domain for domain in await self.toolstack.list()}
        for reservation in saved.reservations:
            size = reservation_promise(self.toolstack, reservation.memory_bytes, reservation.vcpus)
            self.registry.reservations[reservation.id] = reservation
            self.ledger.adopt_reservation(reservation.id, size)
        for zone in saved.zones:
            runtime = self.registry.add_zone(zone)
            if zone.state is ZoneState.DEAD:
                runtime.end.declare(f"its domain ended: {zone.death_reason}")
            else:
                spec = sizing.intended(zone, saved.zone_intents.get(zone.id))
                self.ledger.adopt(zone.id, zone_promise(self.toolstack, spec), spec.reservations)
                self.scratch.adopt(zone.id, spec.scratch_bytes)
            if (domain := domains.get(zone.uuid)) and not domain.mark:
                await mark.restore(self.toolstack, zone)
        await self.sampler.refresh()
        _load_workloads(self.registry, saved)
        unclaimed = unknown(self.registry, domains.values())
        for domain in unclaimed:
            log.warning("unknown domain left alone", extra=fields(domain=domain.id, name=domain.name))
        made_for = [made for domain in unclaimed if (made := mark.zone_of(domain))]
        await self._remove_strays({made.id for made in made_for})
        checkpoint("reconcile.loaded")
        return [
            RecordedZone(runtime, domains.get(runtime.zone.uuid), saved.zone_intents.get(runtime.id))
            for runtime in self.registry.zones.values()
        ]

    async def _remove_strays(self, adoptable: Container[str]) -> None:
        """Remove files and volumes of zones without a record, left by a daemon that died between two steps.

        Files of living orphans stay, because orphans may be adopted.
        """
        for zone_id in self.volumes.zones():
            if zone_id in adoptable:
                continue
            if zone_id not in self.registry.zones:
                try:
                    await self.volumes.close(zone_id)
                except Fault as fault:
                    log.error("left alone: %s", fault, extra=fields(zone=zone_id))
            else:
                self.volumes.resume(zone_id)
        for zone_id in self.scratch.zones():
            if zone_id not in self.registry.zones:
                try:
                    self.scratch.remove(zone_id)
                except Fault as fault:
                    log.error("left alone: %s", fault, extra=fields(zone=zone_id))
        for zone_id in self.dirs.zones():
            if zone_id not in self.registry.zones and zone_id not in adoptable:
                self.dirs.clear(zone_id)


def _load_workloads(registry: Registry, saved: Saved) -> None:
    for workload in saved.workloads:
        runtime = WorkloadRuntime(workload, registry.zones[workload.zone_id])
        registry.add_workload(runtime)
        intent = saved.workload_intents.get(workload.id)
        runtime.deleting = intent is not None
        if workload.reason is not None:
            runtime.ended.set()
