"""After each connection: what the agent says it has, against what we have recorded."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from daemonkit.checkpoints import checkpoint, declare
from daemonkit.faults import Fault
from daemonkit.logs import fields
from protect.model.ports import AgentLink
from protect.state.node import Node, ZoneRuntime
from protect.workloads import adopt, delete, exits
from protect.zones import dial
from xenpod_proto.channel.v1 import channel_pb2

log = logging.getLogger(__name__)

_PROCESS_LIMIT = 4096

declare("resync.listed", "resync.joined")


async def resync(node: Node, runtime: ZoneRuntime) -> None:
    """Adopt every workload of the zone; ends and outputs go on where they were."""
    if runtime.link is None:
        return
    call = channel_pb2.Request(list_processes=channel_pb2.ListProcesses())
    reply = await runtime.link.call(call, node.config.timeouts.call)
    checkpoint("resync.listed")
    untrusted = _by_workload(runtime, reply.processes)
    for workload in list(runtime.workloads.values()):
        adopt.adopt(node, workload, runtime.link, untrusted.get(workload.id))
    orphans: list[channel_pb2.ProcessRef] = []
    for process in reply.processes.processes[:_PROCESS_LIMIT]:
        if process.process.container_id not in runtime.workloads:
            continue
        if process.process.exec_id and process.process.exec_id not in runtime.execs:
            orphans.append(process.process)
        elif process.HasField("exited"):
            exits.on_exit(node, runtime, process.exited)
    _close_orphans(node, runtime, runtime.link, reply.processes)
    checkpoint("resync.joined")
    runtime.answering.set()
    if orphans:
        node.tasks.spawn(_end_orphans(node, runtime, orphans), f"end execs in zone {runtime.id}")


def _by_workload(
    runtime: ZoneRuntime, untrusted: channel_pb2.ProcessList
) -> Mapping[str, channel_pb2.Process]:
    """First processes by workload; those we do not know are not ours to touch."""
    if len(untrusted.processes) > _PROCESS_LIMIT:
        log.warning("zone lists too many processes", extra=fields(zone=runtime.id))
    found: dict[str, channel_pb2.Process] = {}
    for process in untrusted.processes[:_PROCESS_LIMIT]:
        if not process.process.exec_id and process.process.container_id in runtime.workloads:
            found.setdefault(process.process.container_id, process)
    return found


async def _end_orphans(node: Node, runtime: ZoneRuntime, orphans: list[channel_pb2.ProcessRef]) -> None:
    """Execs whose callers went away with an earlier protectd."""
    link = await runtime.agent()
    for orphan in orphans:
        request = channel_pb2.Request(delete_exec=channel_pb2.DeleteExec(process=orphan))
        call = link.call(request, node.config.timeouts.call)
        await runtime.end.guard(f"zone {runtime.id}", call)


def _close_orphans(
    node: Node, runtime: ZoneRuntime, link: AgentLink, untrusted: channel_pb2.ProcessList
) -> None:
    """Connections whose callers went away with an earlier protectd."""
    for dialed in untrusted.connections:
        if dialed.in_stream and dialed.in_stream not in runtime.connections:
            closing = dial.let_go(link, dialed.in_stream, dialed.out_stream)
            node.tasks.spawn(closing, f"close a connection in zone {runtime.id}")


async def finish_intents(node: Node, runtime: ZoneRuntime) -> None:
    """Undo half-made workloads, finish half-done deletes; those that fail wait for the next connection."""
    for workload in list(runtime.workloads.values()):
        if workload.deleting:
            try:
                await delete.finish(node, workload)
            except Fault as fault:
                log.warning("not removed yet: %s", fault, extra=fields(workload=workload.id))
