"""DeleteWorkload, and the undo of a create: removes a workload in repeatable steps."""

from __future__ import annotations

import asyncio
import logging
import signal

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault, Missing, Refused
from daemonkit.logs import fields
from daemonkit.tasks import complete, complete_all
from protect.model.process import ProcessName
from protect.model.workload import WorkloadState
from protect.state.manager import ZoneManager
from protect.state.runtime import WorkloadRuntime
from protect.state.store import Intent
from protect.workloads.devices.attach import release
from protect.workloads.disks import release_disks

log = logging.getLogger(__name__)

INTENT = Intent("workload.delete")


async def delete(manager: ZoneManager, workload_id: str) -> None:
    """Kill and remove a workload; succeeds for an unknown id, and in a dead zone.

    The removal is carried to its end even if the caller goes away.
    """
    runtime = manager.workloads.get(workload_id)
    if runtime is not None:
        await complete(_delete(manager, runtime))


async def _delete(manager: ZoneManager, runtime: WorkloadRuntime) -> None:
    async with runtime.lock:
        if runtime.gone:
            return
        runtime.deleting = True
        manager.put_workload(runtime, runtime.workload, INTENT)
        checkpoint("workload-delete.recorded")
    await finish(manager, runtime)


async def finish(manager: ZoneManager, runtime: WorkloadRuntime) -> None:
    """Do the steps after the record."""
    await _kill(manager, runtime)
    checkpoint("workload-delete.ended")
    async with runtime.lock:
        if not runtime.gone:
            await dismantle(manager, runtime)


async def _kill(manager: ZoneManager, runtime: WorkloadRuntime) -> None:
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
        async with asyncio.timeout(manager.config.timeouts.drain + 1.0):
            await runtime.ended.wait()
    except TimeoutError:
        log.warning("a killed workload has not ended", extra=fields(workload=runtime.id))


async def dismantle(manager: ZoneManager, runtime: WorkloadRuntime) -> None:
    """Remove container, disks, log and record; the workload's lock is held."""
    if runtime.exiting is not None:
        runtime.exiting.cancel()
    if runtime.zone.running:
        await delete_container(runtime)
    checkpoint("workload-delete.container-deleted")
    if runtime.zone.running:
        await complete_all(_detach(manager, runtime, vdev) for vdev in release_disks(runtime))
    await release(manager, runtime.zone, runtime.id)
    checkpoint("workload-delete.devices-released")
    await manager.volumes.detach(runtime.zone.id, runtime.id)
    checkpoint("workload-delete.volumes-detached")
    if runtime.outputs is not None:
        await runtime.outputs.close()
    runtime.zone.client.drop_input(runtime.workload.streams.stdin)
    manager.journal(runtime).unlink(missing_ok=True)
    checkpoint("workload-delete.files-removed")
    manager.drop_workload(runtime)
    checkpoint("workload-delete.forgotten")


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


async def _detach(manager: ZoneManager, runtime: WorkloadRuntime, vdev: str) -> None:
    await manager.toolstack.detach_disk(runtime.zone.zone.domain_id, vdev)
    checkpoint("workload-delete.disk-detached")


async def undo_create(manager: ZoneManager, runtime: WorkloadRuntime) -> None:
    """Remove a workload after a failed creation; the workload's lock is held.

    Failed steps are repeated at the zone's next connection, or become needless with the zone's end.
    """
    runtime.deleting = True
    try:
        await dismantle(manager, runtime)
    except Fault as fault:
        log.error("create workload %s is not wholly undone: %s", runtime.id, fault)
