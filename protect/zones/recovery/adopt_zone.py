"""Connects to the agent of a running zone again, at the daemon's start."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault
from daemonkit.logs import fields
from daemonkit.tasks import Background, race
from protect.config import Timeouts
from protect.model.errors import DomainGone, ProtocolViolation
from protect.model.ports import Splice, ZoneVolumes
from protect.model.toolstack import DomainInfo, Toolstack
from protect.model.zone import ZoneState
from protect.state.registry import Registry
from protect.state.runtime import ZoneRuntime
from protect.workloads.devices.attach import DeviceAttachment
from protect.workloads.exits import release_ended_volumes
from protect.zones import connect, disk_rates
from protect.zones.link_events import ZoneLinks
from protect.zones.recovery.load_records import RecordedZone
from protect.zones.size import sizing
from protect.zones.size.sizing import Sizing
from protect.zones.upkeep import pause
from protect.zones.upkeep.silence import SilenceWatch

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 1.0
"""Seconds between tries to reach a silent zone (each try takes the whole boot time)."""


@dataclass(frozen=True, slots=True)
class ZoneAdoption:
    """Connects to the agents of running zones again, after a start of the daemon."""

    registry: Registry
    toolstack: Toolstack
    volumes: ZoneVolumes
    splice: Splice
    tasks: Background
    attachment: DeviceAttachment
    silence: SilenceWatch
    zone_links: ZoneLinks
    sizing: Sizing
    timeouts: Timeouts

    async def adopt(self, recorded: RecordedZone, domain: DomainInfo) -> None:
        """Connect to the agent again; retry while the zone lives."""
        runtime = recorded.runtime
        runtime.zone = replace(runtime.zone, domain_id=domain.id)
        resized = recorded.intent is not None and recorded.intent.operation == sizing.OPERATION
        if resized:
            await self.sizing.restore(runtime)
        else:
            await sizing.restore_shares(self.toolstack, runtime)
        await disk_rates.restore(self.toolstack, runtime)
        checkpoint("reconcile.shared")
        pause.seen(self.registry, runtime, domain)
        await race(runtime.resumed.wait(), runtime.end.wait())
        self.tasks.spawn(self.silence.wait(runtime), f"wait for the agent of {runtime.id}")
        link = self.zone_links.new(runtime)
        while True:
            try:
                await runtime.client.connect(link, self.timeouts.boot)
                break
            except (ProtocolViolation, DomainGone):
                # Other reports of both faults end the zone.
                raise
            except Fault as fault:
                if runtime.end:
                    raise
                log.warning("zone is silent: %s", fault, extra=fields(zone=runtime.id))
                await _close_outputs(runtime)
                await asyncio.sleep(_PAUSE_SECONDS)
        if resized:
            await self.sizing.start_cpus(runtime)
        await release_ended_volumes(self.volumes, runtime)
        await self.attachment.settle(runtime)
        checkpoint("reconcile.adopted")
        log.info("zone adopted", extra=fields(zone=runtime.id, workloads=len(runtime.workloads)))

    async def finish_connect(self, recorded: RecordedZone) -> None:
        """Finish an interrupted ConnectNetwork.  If the namespace is gone, the caller starts again."""
        if recorded.intent is None or recorded.intent.operation != connect.OPERATION:
            return
        async with recorded.runtime.lock:
            try:
                await connect.finish_connect(
                    self.registry, self.toolstack, self.splice, recorded.runtime, recorded.intent
                )
            except Fault as fault:
                log.warning(
                    "an interrupted connect was given up: %s", fault, extra=fields(zone=recorded.runtime.id)
                )
                if recorded.runtime.zone.state is ZoneState.RUNNING:
                    self.registry.put_zone(recorded.runtime, recorded.runtime.zone)


async def _close_outputs(runtime: ZoneRuntime) -> None:
    """Close the outputs of a link that did not open.  The next link starts at the ends of the logs."""
    for workload in list(runtime.workloads.values()):
        if workload.outputs is not None and workload.exit is None:
            await workload.outputs.close()
            workload.outputs = None
