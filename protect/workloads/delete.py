"""DeleteWorkload, and the undo of a create: removes a workload in repeatable steps."""

from __future__ import annotations

import asyncio
import logging
import signal
from dataclasses import dataclass

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault, Missing, Refused
from daemonkit.logs import fields
from daemonkit.tasks import complete, complete_all
from protect.config import Timeouts
from protect.model.ports import ZoneVolumes
from protect.model.process import ProcessName
from protect.model.toolstack import Toolstack
from protect.model.workload import WorkloadState
from protect.state.registry import Registry
from protect.state.runtime import WorkloadRuntime
from protect.state.store import Intent
from protect.state.zone_dirs import ZoneDirs
from protect.workloads.devices.attach import DeviceAttachment
from protect.workloads.disks import release_disks

log = logging.getLogger(__name__)

INTENT = Intent("workload.delete")


@dataclass(frozen=True, slots=True)
class WorkloadRemoval:
    """Removes workloads with everything that zone and host keep for them."""

    registry: Registry
    toolstack: Toolstack
    volumes: ZoneVolumes
    dirs: ZoneDirs
    attachment: DeviceAttachment
    timeouts: Timeouts

    async def delete(self, workload_id: str) -> None:
        """Kill and remove a workload; succeeds for an unknown id, and in a dead zone.

        The removal is carried to its end even if the caller goes away.
        """
        runtime = self.registry.workloads.get(workload_id)
        if runtime is not None:
            await complete(self._delete(runtime))

    async def _delete(self, runtime: WorkloadRuntime) -> None:
        async with runtime.lock:
            if runtime.gone:
                return
            runtime.deleting = True
            self.registry.put_workload(runtime, runtime.workload, INTENT)
            checkpoint("workload-delete.recorded")
        await self.finish(runtime)

    async def finish(self, runtime: WorkloadRuntime) -> None:
        """Do the steps after the record."""
        await self._kill(runtime)
        checkpoint("workload-delete.ended")
        async with runtime.lock:
            if not runtime.gone:
                await self.dismantle(runtime)

    async def _kill(self, runtime: WorkloadRuntime) -> None:
        """Kill a workload and wait for its end, with the last output in the log."""
        if runtime.workload.state is not WorkloadState.RUNNING or not runtime.zone.running:
            return
        agent = runtime.zone.agent
        await agent.ready()
        try:
            await agent.signal_process(ProcessName(runtime.id), signal.SIGKILL, every=True)
        except (Refused, Missing):
            if runtime.zone.end:
                return
            # Else the workload has just ended by itself; the report is on its way.
        try:
            async with asyncio.timeout(self.timeouts.drain + 1.0):
                await runtime.ended.wait()
        except TimeoutError:
            log.warning("a killed workload has not ended", extra=fields(workload=runtime.id))

    async def dismantle(self, runtime: WorkloadRuntime) -> None:
        """Remove container, disks, log and record; the workload's lock is held."""
        if runtime.exiting is not None:
            runtime.exiting.cancel()
        if runtime.zone.running:
            await delete_container(runtime)
        checkpoint("workload-delete.container-deleted")
        if runtime.zone.running:
            await complete_all(self._detach(runtime, vdev) for vdev in release_disks(runtime))
        await self.attachment.release(runtime.zone, runtime.id)
        checkpoint("workload-delete.devices-released")
        await self.volumes.detach(runtime.zone.id, runtime.id)
        checkpoint("workload-delete.volumes-detached")
        if runtime.outputs is not None:
            await runtime.outputs.close()
        runtime.zone.client.drop_input(runtime.workload.streams.stdin)
        self.dirs.journal(runtime).unlink(missing_ok=True)
        checkpoint("workload-delete.files-removed")
        self.registry.drop_workload(runtime)
        checkpoint("workload-delete.forgotten")

    async def _detach(self, runtime: WorkloadRuntime, vdev: str) -> None:
        await self.toolstack.detach_disk(runtime.zone.zone.domain_id, vdev)
        checkpoint("workload-delete.disk-detached")

    async def undo_create(self, runtime: WorkloadRuntime) -> None:
        """Remove a workload after a failed creation; the workload's lock is held.

        Failed steps are repeated at the zone's next connection, or become needless with the zone's end.
        """
        runtime.deleting = True
        try:
            await self.dismantle(runtime)
        except Fault as fault:
            log.error("create workload %s is not wholly undone: %s", runtime.id, fault)


async def delete_container(runtime: WorkloadRuntime) -> None:
    """Delete the container in the zone, if any."""
    agent = runtime.zone.agent
    await agent.ready()
    try:
        await agent.delete_container(runtime.id)
    except Fault:
        # Else the container went with its zone.
        if not runtime.zone.end:
            raise
