"""Reconciles the agent's processes and connections with the registries, after each new connection."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault
from daemonkit.logs import fields
from protect.model.process import DialedConnection, ListedProcess, ProcessList, ProcessName
from protect.state.manager import ZoneManager
from protect.state.runtime import ZoneRuntime
from protect.workloads import adopt, delete, exits

log = logging.getLogger(__name__)


async def resync(manager: ZoneManager, runtime: ZoneRuntime) -> None:
    """Adopt every workload of the zone; output continues at the last position."""
    await adopt.open_logs(manager, runtime)
    untrusted = await runtime.client.list_processes()
    checkpoint("resync.listed")
    listed = _by_workload(runtime, untrusted)
    for workload in list(runtime.workloads.values()):
        adopt.adopt(manager, workload, listed.get(workload.id))
    orphans: list[ProcessName] = []
    for process in untrusted.processes:
        if process.name.container_id not in runtime.workloads:
            continue
        if process.name.exec_id and process.name.exec_id not in runtime.execs:
            orphans.append(process.name)
        elif process.exited is not None:
            exits.on_exit(manager, runtime, process.exited)
    _close_orphans(manager, runtime, untrusted.connections)
    checkpoint("resync.joined")
    runtime.client.serve()
    if orphans:
        manager.tasks.spawn(_end_orphans(runtime, orphans), f"end execs in zone {runtime.id}")


def _by_workload(runtime: ZoneRuntime, untrusted: ProcessList) -> Mapping[str, ListedProcess]:
    """The first process of each workload, without other processes."""
    found: dict[str, ListedProcess] = {}
    for process in untrusted.processes:
        if not process.name.exec_id and process.name.container_id in runtime.workloads:
            found.setdefault(process.name.container_id, process)
    return found


async def _end_orphans(runtime: ZoneRuntime, orphans: Iterable[ProcessName]) -> None:
    """Remove execs whose callers were lost with an earlier protectd."""
    for orphan in orphans:
        await runtime.agent.delete_exec(orphan)


def _close_orphans(manager: ZoneManager, runtime: ZoneRuntime, untrusted: Iterable[DialedConnection]) -> None:
    """Hang up connections whose callers were lost with an earlier protectd."""
    for connection in untrusted:
        if connection.into not in runtime.client.connections:
            closing = runtime.client.hang_up(connection)
            manager.tasks.spawn(closing, f"close a connection in zone {runtime.id}")


async def finish_intents(manager: ZoneManager, runtime: ZoneRuntime) -> None:
    """Undo half-made workloads, finish half-done deletes; failures are repeated at the next connection."""
    for workload in list(runtime.workloads.values()):
        if workload.deleting:
            try:
                await delete.finish(manager, workload)
            except Fault as fault:
                log.warning("not removed yet: %s", fault, extra=fields(workload=workload.id))
