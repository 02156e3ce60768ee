"""After each connection: what the agent says it has, against what we have recorded."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from daemonkit.faults import Fault
from daemonkit.logs import fields
from protect.node import Node, ZoneRuntime
from protect.workloads import adopt, exits
from xenpod_proto.channel.v1 import channel_pb2

log = logging.getLogger(__name__)

_PROCESS_LIMIT = 4096


async def resync(node: Node, runtime: ZoneRuntime) -> None:
    """Adopt every workload of the zone; ends and outputs go on where they were."""
    if runtime.link is None:
        return
    call = channel_pb2.Request(list_processes=channel_pb2.ListProcesses())
    reply = await runtime.link.call(call, node.config.timeouts.call)
    untrusted = _by_workload(runtime, reply.processes)
    for workload in list(runtime.workloads.values()):
        adopt.adopt(node, workload, runtime.link, untrusted.get(workload.id))
    for process in reply.processes.processes:
        if process.process.exec_id and process.process.exec_id not in runtime.execs:
            await _end_orphan(node, runtime, process.process)
        elif process.HasField("exited"):
            exits.on_exit(node, runtime, process.exited)
    runtime.answering.set()


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


async def _end_orphan(node: Node, runtime: ZoneRuntime, process: channel_pb2.ProcessRef) -> None:
    """An exec whose caller went away with an earlier protectd."""
    if runtime.link is None or process.container_id not in runtime.workloads:
        return
    request = channel_pb2.Request(delete_exec=channel_pb2.DeleteExec(process=process))
    try:
        await runtime.link.call(request, node.config.timeouts.call)
    except Fault as fault:
        log.warning("an orphaned exec is left: %s", fault, extra=fields(zone=runtime.id))
