"""DeleteWorkload, and the undo of a create: what is left of a workload goes, step by repeatable step."""

from __future__ import annotations

import asyncio
import logging
import signal

from daemonkit.checkpoints import checkpoint, declare
from daemonkit.faults import Fault, Missing, Refused
from daemonkit.logs import fields
from protect.model.workload import WorkloadState
from protect.model.zone import ZoneState
from protect.state.node import Node, WorkloadRuntime
from protect.state.store import Intent
from protect.tasks import side_by_side, undone
from protect.workloads.disks import let_go
from xenpod_proto.channel.v1 import channel_pb2

log = logging.getLogger(__name__)

INTENT = Intent("workload.delete")

declare(
    "workload-delete.recorded",
    "workload-delete.ended",
    "workload-delete.container-deleted",
    "workload-delete.disk-detached",
    "workload-delete.volumes-detached",
    "workload-delete.files-removed",
    "workload-delete.forgotten",
)


async def delete(node: Node, workload_id: str) -> None:
    """Kill what runs, remove everything; an unknown id succeeds, so does one in a dead zone."""
    runtime = node.workloads.get(workload_id)
    if runtime is not None:
        await node.tasks.see_through(_conduct(node, runtime), f"delete workload {workload_id}")


async def _conduct(node: Node, runtime: WorkloadRuntime) -> None:
    async with runtime.lock:
        if runtime.gone:
            return
        runtime.deleting = True
        node.put_workload(runtime, runtime.workload, INTENT)
        checkpoint("workload-delete.recorded")
    await finish(node, runtime)


async def finish(node: Node, runtime: WorkloadRuntime) -> None:
    """The steps after the record."""
    await _end(node, runtime)
    checkpoint("workload-delete.ended")
    async with runtime.lock:
        if not runtime.gone:
            await dismantle(node, runtime)


async def _end(node: Node, runtime: WorkloadRuntime) -> None:
    """Kill it and wait for its end, so that its last output is in the log."""
    if runtime.workload.state is not WorkloadState.RUNNING or not _alive(runtime):
        return
    link = await runtime.zone.agent()
    kill = channel_pb2.SignalProcess(
        process=channel_pb2.ProcessRef(container_id=runtime.id), signal=signal.SIGKILL, all=True
    )
    request = channel_pb2.Request(signal_process=kill)
    try:
        await runtime.zone.end.guard(f"zone {runtime.zone.id}", link.call(request, node.config.timeouts.call))
    except (Refused, Missing):
        if runtime.zone.end:
            return
        # Else it has just ended by itself, and the news of it is on its way.
    try:
        async with asyncio.timeout(node.config.timeouts.drain + 1.0):
            await runtime.settled.wait()
    except TimeoutError:
        log.warning("a killed workload has not ended", extra=fields(workload=runtime.id))


async def dismantle(node: Node, runtime: WorkloadRuntime) -> None:
    """Container, disks, log, record; the workload's lock is held."""
    if runtime.exiting is not None:
        runtime.exiting.cancel()
    if _alive(runtime):
        await _delete_container(node, runtime)
    checkpoint("workload-delete.container-deleted")
    if _alive(runtime):
        await side_by_side(_detach(node, runtime, vdev) for vdev in let_go(runtime))
    await node.volumes.detach(runtime.zone.id, runtime.id)
    checkpoint("workload-delete.volumes-detached")
    if runtime.outputs is not None:
        await runtime.outputs.close()
    if runtime.zone.link is not None:
        runtime.zone.link.drop_input(runtime.workload.streams.stdin)
    node.journal(runtime).unlink(missing_ok=True)
    checkpoint("workload-delete.files-removed")
    node.drop_workload(runtime)
    checkpoint("workload-delete.forgotten")


async def _delete_container(node: Node, runtime: WorkloadRuntime) -> None:
    link = await runtime.zone.agent()
    request = channel_pb2.Request(delete_container=channel_pb2.DeleteContainer(id=runtime.id))
    try:
        await runtime.zone.end.guard(f"zone {runtime.zone.id}", link.call(request, node.config.timeouts.call))
    except Fault:
        # Else it has gone with its zone.
        if not runtime.zone.end:
            raise


async def _detach(node: Node, runtime: WorkloadRuntime, vdev: str) -> None:
    await node.toolstack.detach_disk(runtime.zone.zone.domain_id, vdev)
    checkpoint("workload-delete.disk-detached")


async def undo_create(node: Node, runtime: WorkloadRuntime) -> None:
    """Nothing is left of a workload that could not be created; its lock is held.

    What cannot be undone now is at the zone's next connection, or with the zone.
    """
    runtime.deleting = True
    await undone(dismantle(node, runtime), f"create workload {runtime.id}")


def _alive(runtime: WorkloadRuntime) -> bool:
    """Whether its zone can still be worked in."""
    return not runtime.zone.end and runtime.zone.zone.state is ZoneState.RUNNING
