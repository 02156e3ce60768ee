"""Launches a zone: admits, records, creates, boots, greets and configures it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault
from daemonkit.logs import fields
from daemonkit.observe import reported
from daemonkit.observe.steps import step
from protect.config import Timeouts
from protect.model.ports import ScratchDisks, ZoneVolumes
from protect.model.toolstack import DomainSpec, Toolstack
from protect.model.zone import SCRATCH_VDEV, Zone, ZoneSpec, ZoneState
from protect.state.registry import Registry
from protect.state.runtime import ZoneRuntime
from protect.workloads.devices.zone import ZoneDevices
from protect.zones.admission import ZoneAdmission
from protect.zones.deaths import ZoneDeaths
from protect.zones.destroy import ZoneRemoval
from protect.zones.link_events import ZoneLinks
from protect.zones.recovery import mark
from protect.zones.upkeep.clock import ZoneClocks

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ZoneLaunch:
    """Launches zones."""

    registry: Registry
    toolstack: Toolstack
    volumes: ZoneVolumes
    scratch: ScratchDisks
    zone_devices: ZoneDevices
    admission: ZoneAdmission
    removal: ZoneRemoval
    deaths: ZoneDeaths
    clocks: ZoneClocks
    zone_links: ZoneLinks
    timeouts: Timeouts

    async def launch(self, spec: ZoneSpec) -> Zone:
        """Launch a zone until its agent answers; after a failure nothing of the zone is left.

        Exists, Exhausted, Refused (destroyed or dead during the launch), TooLate (no boot), ToolstackError.
        """
        begin = time.monotonic()
        runtime = await self.admission.admit(spec)
        client, toolstack = runtime.client, self.toolstack
        async with runtime.lock, AsyncExitStack() as undo:
            undo.push_async_callback(self._undo, runtime)
            async with self._explained(runtime):
                await self.volumes.open(spec.id)
                checkpoint("zone-create.sharing")
                # Make no domain if a destroy is waiting already.
                runtime.end.check("use", f"zone {spec.id}")
                shared, passthrough = self.volumes.shared(spec.id), self.zone_devices.may_pass_functions(spec)
                with step("domain.create", zone=spec.id):
                    domain = await toolstack.create(
                        domain_spec(runtime.zone, shared, passthrough=passthrough)
                    )
                # In memory only: a restarted daemon finds the domain by its uuid.
                runtime.zone = replace(runtime.zone, domain_id=domain)
                checkpoint("zone-create.domain-created")
                # Boot without the cap: with a tenth of a CPU the boot would take ten times as long.
                await toolstack.set_shares(domain, replace(spec.shares, cap=0))
                if spec.disk_rates:
                    await toolstack.set_disk_rates(domain, spec.disk_rates)
                checkpoint("zone-create.shared-out")
                await self._attach_scratch(runtime)
                with step("zone.boot", zone=spec.id):
                    await toolstack.unpause(domain)
                    checkpoint("zone-create.unpaused")
                    hello = await client.connect(self.zone_links.new(runtime), self.timeouts.boot)
                    reported.show_steps(hello.steps)
                checkpoint("zone-create.connected")
                with step("zone.configure", zone=spec.id):
                    await client.configure_zone(spec)
                checkpoint("zone-create.configured")
                if spec.shares.cap:
                    await toolstack.set_shares(domain, spec.shares)
                checkpoint("zone-create.capped")
                client.serve()
                await self.zone_devices.give_devices(runtime)
                running = runtime.zone.to(
                    ZoneState.RUNNING,
                    boot_id=hello.boot_id.hex(),
                    agent_version=hello.agent_version,
                    file_volumes=hello.file_volumes,
                    anonymous_volumes=hello.anonymous_volumes,
                    resizes=hello.resizes,
                )
                self.registry.put_zone(runtime, running)
                checkpoint("zone-create.running")
                self.clocks.begin(runtime)
            undo.pop_all()
        log.info("zone runs", extra=fields(zone=runtime.id, seconds=time.monotonic() - begin))
        return runtime.zone

    async def _attach_scratch(self, runtime: ZoneRuntime) -> None:
        disk = await asyncio.to_thread(self.scratch.make, runtime.id)
        if disk is None:
            return
        checkpoint("zone-create.scratch-made")
        with step("disk.attach", zone=runtime.id):
            await self.toolstack.attach_disk(runtime.zone.domain_id, disk)
        checkpoint("zone-create.scratch-attached")

    async def _undo(self, runtime: ZoneRuntime) -> None:
        """Remove the zone.  A failure is logged, because the caller gets the fault of the launch."""
        try:
            await self.removal.dismantle(runtime)
        except Fault as fault:
            log.error("create zone %s is not wholly undone: %s", runtime.id, fault)

    @asynccontextmanager
    async def _explained(self, runtime: ZoneRuntime) -> AsyncIterator[None]:
        """Add to a fault of the launch the zone's cause of death, and the console's last lines."""
        try:
            yield
        except Fault as fault:
            raise await self.deaths.explain(runtime, fault) from fault


def domain_spec(zone: Zone, shared: Path, *, passthrough: bool = False) -> DomainSpec:
    """The spec of a zone's domain."""
    spec = zone.spec
    return DomainSpec(
        uuid=zone.uuid,
        name=mark.name_of(zone),
        memory_bytes=spec.memory_bytes,
        vcpus=spec.vcpus,
        mode=spec.mode,
        interfaces=spec.interfaces,
        netns=spec.netns,
        environment={
            "XENPOD_ZONE": spec.id,
            **({"XENPOD_SCRATCH": SCRATCH_VDEV} if spec.scratch_bytes else {}),
        },
        shared=shared,
        kernel=spec.kernel,
        seclabel=spec.seclabel,
        mark=mark.of_zone(zone),
        memory_max_bytes=spec.memory_max_bytes,
        vcpus_max=spec.vcpus_max,
        hotplug_max_bytes=spec.hotplug_max_bytes,
        cpupool=spec.cpupool,
        passthrough=passthrough,
    )
