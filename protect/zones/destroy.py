"""DestroyZone: ends the domain, and forgets the zone after its removal."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from daemonkit.checkpoints import checkpoint
from daemonkit.logs import fields
from daemonkit.tasks import complete
from protect.model.toolstack import DomainId
from protect.model.zone import ZoneState
from protect.state.manager import ZoneManager
from protect.state.runtime import ZoneRuntime
from protect.state.store import Intent
from protect.zones.recovery import mark

log = logging.getLogger(__name__)

INTENT = Intent("zone.destroy")


async def destroy(manager: ZoneManager, zone_id: str) -> None:
    """Remove the zone and its contents in any state; an unknown id succeeds.

    The removal is carried to its end even if the caller goes away.
    """
    runtime = manager.zones.get(zone_id)
    if runtime is not None:
        await complete(_destroy(manager, runtime))


async def _destroy(manager: ZoneManager, runtime: ZoneRuntime) -> None:
    # Wake a launch, an adoption and every call in the zone: they release the zone's lock.
    manager.declare_end(runtime, "it is being destroyed")
    async with runtime.lock:
        if manager.zones.get(runtime.id) is runtime:
            await dismantle(manager, runtime)
            log.info("zone destroyed", extra=fields(zone=runtime.id))


async def dismantle(manager: ZoneManager, runtime: ZoneRuntime) -> None:
    """Remove the zone in repeatable steps; the zone's lock is held.

    After a failed step the zone stays DESTROYING, for another try.
    """
    manager.declare_end(runtime, "it is being destroyed")
    # Noted, not put: a full disk must not keep a domain alive.
    manager.note_zone(runtime, runtime.zone.to(ZoneState.DESTROYING), INTENT)
    checkpoint("zone-destroy.recorded")
    await quiesce(runtime)
    checkpoint("zone-destroy.quiet")
    domain = await find_domain(manager, runtime)
    if domain is not None:
        await manager.toolstack.destroy(domain)
    # An earlier daemon may have died between the end of the domain and this step.
    await manager.toolstack.forget_console(mark.name_of(runtime.zone))
    checkpoint("zone-destroy.domain-destroyed")
    await manager.volumes.close(runtime.id)
    checkpoint("zone-destroy.volumes-removed")
    manager.clear_zone_dir(runtime.id)
    checkpoint("zone-destroy.files-removed")
    await asyncio.to_thread(manager.scratch.remove, runtime.id)
    checkpoint("zone-destroy.scratch-removed")
    manager.drop_zone(runtime)
    checkpoint("zone-destroy.forgotten")


async def quiesce(runtime: ZoneRuntime) -> None:
    """Close the channel, and wait until no verb works in the zone.  The end is declared already."""
    await runtime.client.close()
    async with runtime.attaching:
        pass  # the verb with the lock has undone its attach, or the domain's end frees the rest
    for workload in list(runtime.workloads.values()):
        async with workload.lock:
            if workload.exiting is not None:
                workload.exiting.cancel()
            if workload.outputs is not None:
                await workload.outputs.close()


async def find_domain(manager: ZoneManager, runtime: ZoneRuntime) -> DomainId | None:
    """The zone's domain, found by uuid (numbers may be reused); None: no domain."""
    domain = await manager.toolstack.find(runtime.zone.uuid)
    if domain is None:
        return None
    if not domain.mark:  # lost with xenstore; the toolstack ends only claimed domains
        await manager.toolstack.claim(domain.uuid, mark.name_of(runtime.zone), mark.of_zone(runtime.zone))
    runtime.zone = replace(runtime.zone, domain_id=domain.id)
    return domain.id
