"""Reconciles recorded zones with the hypervisor's domains at the daemon's start.

``load`` registers the zones quickly, and serving can begin.  ``reconcile`` works in the background for each
zone separately, and a silent or dead zone delays no other zone.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Container
from dataclasses import dataclass, replace
from uuid import UUID

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault
from daemonkit.logs import fields
from daemonkit.tasks import race
from protect.model.errors import DomainGone, ProtocolViolation
from protect.model.toolstack import DomainInfo, DomainState
from protect.model.workload import WorkloadState
from protect.model.zone import Zone, ZoneState
from protect.state.death import Death, DeathKind
from protect.state.manager import ZoneManager
from protect.state.runtime import WorkloadRuntime, ZoneRuntime
from protect.state.store import Intent, Saved
from protect.workloads import exits
from protect.workloads.devices.attach import settle
from protect.zones import connect, deaths, disk_rates
from protect.zones.capacity.host_memory import refresh, reservation_promise, zone_promise
from protect.zones.destroy import dismantle, find_domain
from protect.zones.events import new_link
from protect.zones.recovery import mark, resync, strangers
from protect.zones.recovery.strangers import unknown
from protect.zones.size import sizing
from protect.zones.upkeep import pause, silence

log = logging.getLogger(__name__)

_PAUSE = 1.0
"""Seconds between tries to reach a silent zone (each try takes the whole boot time)."""


@dataclass(frozen=True, slots=True)
class RecordedZone:
    """A recorded zone, its domain if any, and the interrupted operation."""

    runtime: ZoneRuntime
    domain: DomainInfo | None
    intent: Intent | None


async def load(manager: ZoneManager) -> list[RecordedZone]:
    """Fill the registries from the store."""
    saved = manager.store.load()
    domains = {domain.uuid: domain for domain in await manager.toolstack.list()}
    for reservation in saved.reservations:
        size = reservation_promise(manager.toolstack, reservation.memory_bytes, reservation.vcpus)
        manager.reservations[reservation.id] = reservation
        manager.ledger.adopt_reservation(reservation.id, size)
    for zone in saved.zones:
        runtime = manager.add_zone(zone)
        if zone.state is ZoneState.DEAD:
            runtime.end.declare(f"its domain ended: {zone.death_reason}")
        else:
            spec = sizing.intended(zone, saved.zone_intents.get(zone.id))
            manager.ledger.adopt(zone.id, zone_promise(manager.toolstack, spec), spec.reservations)
            manager.scratch.adopt(zone.id, spec.scratch_bytes)
        if (domain := domains.get(zone.uuid)) and not domain.mark:
            await mark.restore(manager, zone)
    await refresh(manager)
    _load_workloads(manager, saved)
    unclaimed = unknown(manager, domains.values())
    for domain in unclaimed:
        log.warning("unknown domain left alone", extra=fields(domain=domain.id, name=domain.name))
    made_for = [made for domain in unclaimed if (made := mark.zone_of(domain))]
    await _remove_strays(manager, {made.id for made in made_for})
    checkpoint("reconcile.loaded")
    return [
        RecordedZone(runtime, domains.get(runtime.zone.uuid), saved.zone_intents.get(runtime.id))
        for runtime in manager.zones.values()
    ]


async def reconcile(manager: ZoneManager, recorded: RecordedZone) -> None:
    """Bring a zone to a settled state: adopted, dead without a domain, or gone."""
    runtime = recorded.runtime
    match runtime.zone.state:
        case ZoneState.CREATING | ZoneState.DESTROYING:
            async with runtime.lock:
                if manager.zones.get(runtime.id) is runtime:  # a caller may have destroyed the zone
                    await dismantle(manager, runtime)
            checkpoint("reconcile.undone")
        case ZoneState.DEAD:
            await _clean_up(manager, runtime)
        case ZoneState.RUNNING if recorded.domain is None:
            await _lost(manager, runtime)
        case ZoneState.RUNNING if recorded.domain and recorded.domain.state is not DomainState.SHUTDOWN:
            stopping = manager.stopping.raised("use", f"zone {runtime.id}")
            await race(_adopt(manager, recorded, recorded.domain), stopping)
            await _finish_connect(manager, recorded)
        # The toolstack's deaths() reports a domain in SHUTDOWN.


async def adopt_stranger(manager: ZoneManager, uuid: UUID) -> ZoneRuntime:
    """Make a zone of a domain without a record; connect in the background, as after a start."""
    runtime, domain = await strangers.adopt(manager, uuid)
    if domain.state is DomainState.PAUSED:  # perhaps never unpaused
        await manager.toolstack.unpause(domain.id)
        domain = replace(domain, state=DomainState.RUNNING)
    adopting = reconcile(manager, RecordedZone(runtime, domain, None))
    manager.tasks.spawn(adopting, f"adopt zone {runtime.id}")
    return runtime


async def _lost(manager: ZoneManager, runtime: ZoneRuntime) -> None:
    """Handle a zone without its domain, after a reboot of the host or a foreign destroy."""
    runtime.end.declare("its domain is gone")
    async with runtime.lock:
        lost = Death(DeathKind.VANISHED, _cause_of_loss(manager, runtime.zone))
        await deaths.mark_dead(manager, runtime, lost)
        manager.ledger.release(runtime.id)
    checkpoint("reconcile.marked-dead")
    await _clean_up(manager, runtime)


def _cause_of_loss(manager: ZoneManager, zone: Zone) -> str:
    """Why a zone's domain is not there: a zone belongs to one boot of its host."""
    if zone.host_boot != manager.host_boot:
        return "the host was rebooted"
    return "its domain was gone when protectd started"


async def _clean_up(manager: ZoneManager, runtime: ZoneRuntime) -> None:
    """Free resources of a dead zone's domain, and finish deletions in the zone."""
    async with runtime.lock:
        domain = await find_domain(manager, runtime)
        if domain is not None:
            await manager.toolstack.destroy(domain)
        await asyncio.to_thread(manager.scratch.remove, runtime.id)
        if manager.zones.get(runtime.id) is runtime:
            manager.ledger.release(runtime.id)
    await _release_ended(manager, runtime)
    await resync.finish_intents(manager, runtime)


async def _release_ended(manager: ZoneManager, runtime: ZoneRuntime) -> None:
    """Release volumes of ended workloads after an earlier failure."""
    for workload in list(runtime.workloads.values()):
        async with workload.lock:
            if workload.workload.state is WorkloadState.EXITED:
                await exits.release_volumes(manager, workload)


async def _adopt(manager: ZoneManager, recorded: RecordedZone, domain: DomainInfo) -> None:
    """Connect to the agent again; retry while the zone lives."""
    runtime = recorded.runtime
    runtime.zone = replace(runtime.zone, domain_id=domain.id)
    resized = recorded.intent is not None and recorded.intent.operation == sizing.OPERATION
    await (sizing.restore if resized else sizing.restore_shares)(manager, runtime)
    await disk_rates.restore(manager, runtime)
    checkpoint("reconcile.shared")
    pause.seen(manager, runtime, domain)
    await race(runtime.resumed.wait(), runtime.end.wait())
    manager.tasks.spawn(silence.wait(manager, runtime), f"wait for the agent of {runtime.id}")
    link = new_link(manager, runtime)
    while True:
        try:
            await runtime.client.connect(link, manager.config.timeouts.boot)
            break
        except (ProtocolViolation, DomainGone):
            # Other reports of both faults end the zone.
            raise
        except Fault as fault:
            if runtime.end:
                raise
            log.warning("zone is silent: %s", fault, extra=fields(zone=runtime.id))
            await _close_outputs(runtime)
            await asyncio.sleep(_PAUSE)
    if resized:
        await sizing.start_cpus(manager, runtime)
    await _release_ended(manager, runtime)
    await settle(manager, runtime)
    checkpoint("reconcile.adopted")
    log.info("zone adopted", extra=fields(zone=runtime.id, workloads=len(runtime.workloads)))


async def _close_outputs(runtime: ZoneRuntime) -> None:
    """Close the outputs of a link that did not open.  The next link starts at the ends of the logs."""
    for workload in list(runtime.workloads.values()):
        if workload.outputs is not None and workload.exit is None:
            await workload.outputs.close()
            workload.outputs = None


async def _finish_connect(manager: ZoneManager, recorded: RecordedZone) -> None:
    """Finish an interrupted ConnectNetwork.  If the namespace is gone, the caller starts again."""
    if recorded.intent is None or recorded.intent.operation != connect.OPERATION:
        return
    async with recorded.runtime.lock:
        try:
            await connect.finish(manager, recorded.runtime, recorded.intent)
        except Fault as fault:
            log.warning(
                "an interrupted connect was given up: %s", fault, extra=fields(zone=recorded.runtime.id)
            )
            if recorded.runtime.zone.state is ZoneState.RUNNING:
                manager.put_zone(recorded.runtime, recorded.runtime.zone)


def _load_workloads(manager: ZoneManager, saved: Saved) -> None:
    for workload in saved.workloads:
        runtime = WorkloadRuntime(workload, manager.zones[workload.zone_id])
        manager.add_workload(runtime)
        intent = saved.workload_intents.get(workload.id)
        runtime.deleting = intent is not None
        if workload.reason is not None:
            runtime.ended.set()


async def _remove_strays(manager: ZoneManager, adoptable: Container[str]) -> None:
    """Remove files and volumes of zones without a record, left by a daemon that died between two steps.

    Files of living strangers stay, because strangers may be adopted.
    """
    for zone_id in manager.volumes.zones():
        if zone_id in adoptable:
            continue
        if zone_id not in manager.zones:
            try:
                await manager.volumes.close(zone_id)
            except Fault as fault:
                log.error("left alone: %s", fault, extra=fields(zone=zone_id))
        else:
            manager.volumes.resume(zone_id)
    for zone_id in manager.scratch.zones():
        if zone_id not in manager.zones:
            try:
                manager.scratch.remove(zone_id)
            except Fault as fault:
                log.error("left alone: %s", fault, extra=fields(zone=zone_id))
    directory = manager.config.run_dir / "zones"
    for entry in directory.iterdir() if directory.is_dir() else ():
        if entry.name not in manager.zones and entry.name not in adoptable:
            shutil.rmtree(entry, ignore_errors=True)
