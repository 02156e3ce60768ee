"""At the start of the daemon: what is recorded against what the hypervisor has.

``load`` is quick and makes the zones known, so that serving can begin; ``settle`` then works in
the background, each zone by itself: a silent or dead one holds up nobody else.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace

from daemonkit.checkpoints import checkpoint, declare
from daemonkit.faults import Fault
from daemonkit.logs import fields
from protect.model.errors import DomainGone, ProtocolViolation
from protect.model.workload import WorkloadState
from protect.model.zone import ZoneState
from protect.state.node import Node, WorkloadRuntime, ZoneRuntime
from protect.state.store import Intent, Saved
from protect.toolstack.port import DomainInfo, DomainState
from protect.workloads import volumes
from protect.zones import connect, deaths, resync
from protect.zones.destroy import dismantle, find_domain
from protect.zones.events import ZoneEvents

log = logging.getLogger(__name__)

_PAUSE = 1.0
"""Seconds before a silent zone is tried again (each try takes the whole boot time)."""

declare("reconcile.loaded", "reconcile.undone", "reconcile.buried", "reconcile.adopted")


@dataclass(frozen=True, slots=True)
class Found:
    """A recorded zone, its domain if there is one, and what was being done to it."""

    runtime: ZoneRuntime
    domain: DomainInfo | None
    intent: Intent | None


async def load(node: Node) -> list[Found]:
    """Fill the registries from the store."""
    saved = node.store.load()
    domains = {domain.uuid: domain for domain in await node.toolstack.list()}
    for zone in saved.zones:
        runtime = ZoneRuntime(zone)
        node.zones[zone.id] = runtime
        if zone.state is ZoneState.DEAD:
            runtime.end.declare(f"its domain ended: {zone.death_reason}")
        else:
            node.ledger.adopt(zone.id, zone.spec.memory_bytes)
    _load_workloads(node, saved)
    await _remove_strays(node)
    for domain in unknown(node, domains.values()):
        log.warning("unknown domain left alone", extra=fields(domain=domain.id, name=domain.name))
    checkpoint("reconcile.loaded")
    return [
        Found(runtime, domains.get(runtime.zone.uuid), saved.zone_intents.get(runtime.id))
        for runtime in node.zones.values()
    ]


async def settle(node: Node, found: Found) -> None:
    """Bring one zone to rest: adopted, buried, or gone."""
    runtime = found.runtime
    match runtime.zone.state:
        case ZoneState.CREATING | ZoneState.DESTROYING:
            async with runtime.lock:
                await dismantle(node, runtime)
            checkpoint("reconcile.undone")
        case ZoneState.DEAD:
            await _bury(node, runtime)
        case ZoneState.RUNNING if found.domain is None:
            await _lost(node, runtime)
        case ZoneState.RUNNING if found.domain and found.domain.state is not DomainState.SHUTDOWN:
            await node.stopping.guard(f"zone {runtime.id}", _reach(node, runtime, found.domain))
            await _finish_connect(node, found)
        # A domain in SHUTDOWN is told by the toolstack's deaths().


async def _lost(node: Node, runtime: ZoneRuntime) -> None:
    """The domain went while nobody watched: a boot of the host, or another's destroy."""
    runtime.end.declare("its domain is gone")
    async with runtime.lock:
        await deaths.settle(node, runtime, "its domain was gone when protectd started")
        node.ledger.release(runtime.id)
    checkpoint("reconcile.buried")
    await _bury(node, runtime)


async def _bury(node: Node, runtime: ZoneRuntime) -> None:
    """Free what a dead zone's domain may still hold; finish the deletes in it."""
    async with runtime.lock:
        domain = await find_domain(node, runtime)
        if domain is not None:
            await node.toolstack.destroy(domain)
    await _release_ended(node, runtime)
    await resync.finish_intents(node, runtime)


async def _release_ended(node: Node, runtime: ZoneRuntime) -> None:
    """What could not be taken away when they ended."""
    for workload in list(runtime.workloads.values()):
        async with workload.lock:
            if workload.workload.state is WorkloadState.EXITED:
                await volumes.release(node, workload)


async def _reach(node: Node, runtime: ZoneRuntime, domain: DomainInfo) -> None:
    await runtime.end.guard(f"zone {runtime.id}", _adopt(node, runtime, domain))


async def _adopt(node: Node, runtime: ZoneRuntime, domain: DomainInfo) -> None:
    """Find the agent again, for as long as the zone lives."""
    runtime.zone = replace(runtime.zone, domain_id=domain.id)
    if domain.state is DomainState.PAUSED:
        await node.toolstack.unpause(domain.id)
    dial = functools.partial(node.toolstack.open_channel, domain.id)
    runtime.link = node.links(runtime.id, dial, ZoneEvents(node, runtime))
    while True:
        try:
            await runtime.link.open(node.config.timeouts.boot)
            break
        except (ProtocolViolation, DomainGone):
            # Both are told by other ways, and end the zone there.
            raise
        except Fault as fault:
            log.warning("zone is silent: %s", fault, extra=fields(zone=runtime.id))
            await _unjoin(runtime)
            await asyncio.sleep(_PAUSE)
    await _release_ended(node, runtime)
    checkpoint("reconcile.adopted")
    log.info("zone adopted", extra=fields(zone=runtime.id, workloads=len(runtime.workloads)))


async def _unjoin(runtime: ZoneRuntime) -> None:
    """A link that did not open has forgotten what was joined to it: the next begins where the logs end."""
    for workload in list(runtime.workloads.values()):
        if workload.outputs is not None and workload.exit is None:
            await workload.outputs.close()
            workload.outputs = None


async def _finish_connect(node: Node, found: Found) -> None:
    """A ConnectNetwork that we ended in; its namespace may be gone, then its caller begins anew."""
    if found.intent is None or found.intent.operation != connect.OPERATION:
        return
    async with found.runtime.lock:
        try:
            await connect.finish(node, found.runtime, found.intent)
        except Fault as fault:
            log.warning("an interrupted connect was given up: %s", fault, extra=fields(zone=found.runtime.id))
            if found.runtime.zone.state is ZoneState.RUNNING:
                node.put_zone(found.runtime, found.runtime.zone)


def unknown(node: Node, domains: Iterable[DomainInfo]) -> list[DomainInfo]:
    """Domains that no zone of ours accounts for."""
    known = {runtime.zone.uuid for runtime in node.zones.values()}
    return [domain for domain in domains if domain.uuid not in known]


def _load_workloads(node: Node, saved: Saved) -> None:
    for workload in saved.workloads:
        zone = node.zones[workload.zone_id]
        runtime = WorkloadRuntime(workload, zone)
        zone.workloads[workload.id] = runtime
        node.workloads[workload.id] = runtime
        intent = saved.workload_intents.get(workload.id)
        runtime.deleting = intent is not None
        if workload.reason is not None:
            runtime.settled.set()


async def _remove_strays(node: Node) -> None:
    """What is left of zones that are forgotten (we ended between the two)."""
    for zone_id in node.volumes.zones():
        if zone_id not in node.zones:
            try:
                await node.volumes.close(zone_id)
            except Fault as fault:
                log.error("left alone: %s", fault, extra=fields(zone=zone_id))
    directory = node.config.run_dir / "zones"
    for entry in directory.iterdir() if directory.is_dir() else ():
        if entry.name not in node.zones:
            shutil.rmtree(entry, ignore_errors=True)
