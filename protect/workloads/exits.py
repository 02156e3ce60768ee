"""The end of a workload: its exit code comes, its last output comes, then both are recorded and told."""

from __future__ import annotations

import asyncio
import logging

from daemonkit.checkpoints import checkpoint, declare
from daemonkit.logs import fields
from protect.model.workload import KILLED, Exit, Reason, Workload, WorkloadState
from protect.state.node import Node, WorkloadRuntime, ZoneRuntime, now_ns
from protect.workloads.volumes import release
from xenpod_proto.channel.v1 import channel_pb2

log = logging.getLogger(__name__)

_CODE_LIMIT = 255
_CLOCK_SLACK_NS = 1_000_000_000

declare("workload-exit.heard", "workload-exit.drained", "workload-exit.released", "workload-exit.recorded")


def on_exit(node: Node, zone: ZoneRuntime, untrusted: channel_pb2.ProcessExited) -> None:
    """The agent says a process ended; heard any number of times, it counts once."""
    reference = untrusted.process
    if reference.exec_id:
        run = zone.execs.get(reference.exec_id)
        if run is not None and run.workload_id == reference.container_id:
            run.exited(min(untrusted.exit_code, _CODE_LIMIT))
        return
    runtime = zone.workloads.get(reference.container_id)
    if runtime is None or runtime.exit is not None or runtime.workload.state is WorkloadState.EXITED:
        return
    runtime.exit = read(runtime.workload, untrusted)
    checkpoint("workload-exit.heard")
    runtime.exiting = node.tasks.spawn(_settle(node, runtime, runtime.exit), f"end of workload {runtime.id}")


def read(workload: Workload, untrusted: channel_pb2.ProcessExited) -> Exit:
    """Bounded; a time that cannot be is replaced by now."""
    now = now_ns()
    at_ns = untrusted.exited_at_ns
    if not max(workload.created_at_ns, workload.started_at_ns) <= at_ns <= now + _CLOCK_SLACK_NS:
        at_ns = now
    return Exit(min(untrusted.exit_code, _CODE_LIMIT), untrusted.oom_killed, at_ns)


async def _settle(node: Node, runtime: WorkloadRuntime, end: Exit) -> None:
    await _drain(node, runtime)
    checkpoint("workload-exit.drained")
    async with runtime.lock:
        if runtime.gone or runtime.workload.state is WorkloadState.EXITED:
            return
        if runtime.outputs is not None:
            await runtime.outputs.close()
        await release(node, runtime)
        checkpoint("workload-exit.released")
        node.note_workload(runtime, runtime.workload.exited(end))
        checkpoint("workload-exit.recorded")


async def _drain(node: Node, runtime: WorkloadRuntime) -> None:
    """Until all output is in the log; bounded, since something may have inherited the pipe."""
    if runtime.outputs is None:
        return
    try:
        async with asyncio.timeout(node.config.timeouts.drain):
            await runtime.outputs.drained.wait()
    except TimeoutError:
        log.warning("an ended workload's output stays open: given up", extra=fields(workload=runtime.id))


async def bury(node: Node, runtime: WorkloadRuntime, cause: str) -> None:
    """Its zone ended: record its own end if that was heard, else that it was killed."""
    async with runtime.lock:
        if runtime.gone or runtime.workload.state in (WorkloadState.EXITED, WorkloadState.CREATING):
            return
        await release(node, runtime)
        if runtime.exit is not None:
            node.note_workload(runtime, runtime.workload.exited(runtime.exit))
            return
        end = Exit(KILLED, oom_killed=False, at_ns=now_ns())
        message = f"the zone ended: {cause}"
        node.note_workload(runtime, runtime.workload.exited(end, Reason.ZONE_CRASHED, message))
