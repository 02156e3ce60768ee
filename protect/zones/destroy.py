"""DestroyZone: end the domain, and forget the zone once nothing of it is left."""

from __future__ import annotations

import logging
from dataclasses import replace

from daemonkit.checkpoints import checkpoint, declare
from daemonkit.logs import fields
from protect.model.zone import ZoneState
from protect.state.node import Node, ZoneRuntime
from protect.state.store import Intent
from protect.toolstack.port import DomainId

log = logging.getLogger(__name__)

INTENT = Intent("zone.destroy")

declare(
    "zone-destroy.recorded",
    "zone-destroy.quiet",
    "zone-destroy.domain-destroyed",
    "zone-destroy.volumes-removed",
    "zone-destroy.files-removed",
    "zone-destroy.forgotten",
)


async def destroy(node: Node, zone_id: str) -> None:
    """Remove the zone and everything in it, whatever it is doing; an unknown id succeeds."""
    runtime = node.zones.get(zone_id)
    if runtime is not None:
        await node.tasks.see_through(_conduct(node, runtime), f"destroy zone {zone_id}")


async def _conduct(node: Node, runtime: ZoneRuntime) -> None:
    # Wakes a launch, an adoption and every call in the zone, which then let go of its lock.
    runtime.end.declare("it is being destroyed")
    async with runtime.lock:
        if node.zones.get(runtime.id) is runtime:
            await dismantle(node, runtime)
            log.info("zone destroyed", extra=fields(zone=runtime.id))


async def dismantle(node: Node, runtime: ZoneRuntime) -> None:
    """Every step of it may be repeated; the zone's lock is held.

    A step that fails leaves the zone listed as DESTROYING, to be destroyed again.
    """
    runtime.end.declare("it is being destroyed")
    # Noted: a full disk must not keep a domain alive.
    node.note_zone(runtime, runtime.zone.to(ZoneState.DESTROYING), INTENT)
    checkpoint("zone-destroy.recorded")
    await quiesce(runtime)
    checkpoint("zone-destroy.quiet")
    domain = await find_domain(node, runtime)
    if domain is not None:
        await node.toolstack.destroy(domain)
    checkpoint("zone-destroy.domain-destroyed")
    await node.volumes.close(runtime.id)
    checkpoint("zone-destroy.volumes-removed")
    node.clear_zone_dir(runtime.id)
    checkpoint("zone-destroy.files-removed")
    node.drop_zone(runtime)
    checkpoint("zone-destroy.forgotten")


async def quiesce(runtime: ZoneRuntime) -> None:
    """Cut the channel, and wait until nobody works in the zone any more (its end is declared)."""
    if runtime.link is not None:
        await runtime.link.close()
    for workload in list(runtime.workloads.values()):
        async with workload.lock:
            if workload.exiting is not None:
                workload.exiting.cancel()
            if workload.outputs is not None:
                await workload.outputs.close()


async def find_domain(node: Node, runtime: ZoneRuntime) -> DomainId | None:
    """The zone's domain; None when there is none.  The uuid is the truth, ids may be used again."""
    for domain in await node.toolstack.list():
        if domain.uuid == runtime.zone.uuid:
            runtime.zone = replace(runtime.zone, domain_id=domain.id)
            return domain.id
    return None
