"""DestroyZone: ends the domain, and forgets the zone after its removal."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace

from daemonkit.checkpoints import checkpoint
from daemonkit.logs import fields
from daemonkit.tasks import complete
from protect.model.ports import ScratchDisks, ZoneVolumes
from protect.model.toolstack import DomainId, Toolstack
from protect.model.zone import ZoneState
from protect.state.ledger import Ledger
from protect.state.registry import Registry
from protect.state.runtime import ZoneRuntime
from protect.state.store import Intent
from protect.state.zone_dirs import ZoneDirs
from protect.zones.recovery import mark

log = logging.getLogger(__name__)

INTENT = Intent("zone.destroy")


@dataclass(frozen=True, slots=True)
class ZoneRemoval:
    """Removes zones with everything that the host keeps for them."""

    registry: Registry
    ledger: Ledger
    toolstack: Toolstack
    volumes: ZoneVolumes
    scratch: ScratchDisks
    dirs: ZoneDirs

    async def destroy(self, zone_id: str) -> None:
        """Remove the zone and its contents in any state; an unknown id succeeds.

        The removal is carried to its end even if the caller goes away.
        """
        runtime = self.registry.zones.get(zone_id)
        if runtime is not None:
            await complete(self._destroy(runtime))

    async def _destroy(self, runtime: ZoneRuntime) -> None:
        # Wake a launch, an adoption and every call in the zone: they release the zone's lock.
        declare_end(self.toolstack, runtime, "it is being destroyed")
        async with runtime.lock:
            if self.registry.zones.get(runtime.id) is runtime:
                await self.dismantle(runtime)
                log.info("zone destroyed", extra=fields(zone=runtime.id))

    async def dismantle(self, runtime: ZoneRuntime) -> None:
        """Remove the zone in repeatable steps; the zone's lock is held.

        After a failed step the zone stays DESTROYING, for another try.
        """
        declare_end(self.toolstack, runtime, "it is being destroyed")
        # Noted, not put: a full disk must not keep a domain alive.
        self.registry.note_zone(runtime, runtime.zone.to(ZoneState.DESTROYING), INTENT)
        checkpoint("zone-destroy.recorded")
        await quiesce(runtime)
        checkpoint("zone-destroy.quiet")
        domain = await find_domain(self.toolstack, runtime)
        if domain is not None:
            await self.toolstack.destroy(domain)
        # An earlier daemon may have died between the end of the domain and this step.
        await self.toolstack.forget_console(mark.name_of(runtime.zone))
        checkpoint("zone-destroy.domain-destroyed")
        await self.volumes.close(runtime.id)
        checkpoint("zone-destroy.volumes-removed")
        self.dirs.clear(runtime.id)
        checkpoint("zone-destroy.files-removed")
        await asyncio.to_thread(self.scratch.remove, runtime.id)
        checkpoint("zone-destroy.scratch-removed")
        self.registry.drop_zone(runtime)
        self.ledger.release(runtime.id)
        checkpoint("zone-destroy.forgotten")


def declare_end(toolstack: Toolstack, runtime: ZoneRuntime, cause: str) -> None:
    """Declare a zone's end, and wake the verbs that wait for the agent or the kernel."""
    runtime.end.declare(cause)
    if runtime.zone.domain_id:
        toolstack.abandon(runtime.zone.domain_id)


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


async def find_domain(toolstack: Toolstack, runtime: ZoneRuntime) -> DomainId | None:
    """The zone's domain, found by uuid (numbers may be reused); None: no domain."""
    domain = await toolstack.find(runtime.zone.uuid)
    if domain is None:
        return None
    if not domain.mark:  # lost with xenstore; the toolstack ends only claimed domains
        await toolstack.claim(domain.uuid, mark.name_of(runtime.zone), mark.of_zone(runtime.zone))
    runtime.zone = replace(runtime.zone, domain_id=domain.id)
    return domain.id
