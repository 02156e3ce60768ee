"""Reconciles the agent's processes and connections with the registries, after each new connection."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault
from daemonkit.logs import fields
from daemonkit.tasks import Background
from protect.model.process import DialedConnection, ListedProcess, ProcessList, ProcessName
from protect.state.runtime import ZoneRuntime
from protect.workloads.adopt import WorkloadAdoption
from protect.workloads.delete import WorkloadRemoval
from protect.workloads.exits import WorkloadExits

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Resync:
    """Reconciles the agent of a zone with the registry."""

    tasks: Background
    exits: WorkloadExits
    workload_removal: WorkloadRemoval
    workload_adoption: WorkloadAdoption

    async def resync(self, runtime: ZoneRuntime) -> None:
        """Adopt every workload of the zone; output continues at the last position."""
        await self.workload_adoption.open_logs(runtime)
        untrusted = await runtime.client.list_processes()
        checkpoint("resync.listed")
        listed = _by_workload(runtime, untrusted)
        for workload in list(runtime.workloads.values()):
            self.workload_adoption.adopt(workload, listed.get(workload.id))
        abandoned: list[ProcessName] = []
        for process in untrusted.processes:
            if process.name.container_id not in runtime.workloads:
                continue
            if process.name.exec_id and process.name.exec_id not in runtime.execs:
                abandoned.append(process.name)
            elif process.exited is not None:
                self.exits.on_exit(runtime, process.exited)
        self._close_abandoned(runtime, untrusted.connections)
        checkpoint("resync.joined")
        runtime.client.serve()
        if abandoned:
            self.tasks.spawn(_end_abandoned(runtime, abandoned), f"end execs in zone {runtime.id}")

    def _close_abandoned(self, runtime: ZoneRuntime, untrusted: Iterable[DialedConnection]) -> None:
        """Hang up connections whose callers were lost with an earlier protectd."""
        for connection in untrusted:
            if connection.into not in runtime.client.connections:
                closing = runtime.client.hang_up(connection)
                self.tasks.spawn(closing, f"close a connection in zone {runtime.id}")

    async def finish_intents(self, runtime: ZoneRuntime) -> None:
        """Undo half-made workloads, finish half-done deletes; the next connection repeats failures."""
        for workload in list(runtime.workloads.values()):
            if workload.deleting:
                try:
                    await self.workload_removal.finish(workload)
                except Fault as fault:
                    log.warning("not removed yet: %s", fault, extra=fields(workload=workload.id))


def _by_workload(runtime: ZoneRuntime, untrusted: ProcessList) -> Mapping[str, ListedProcess]:
    """The first process of each workload, without other processes."""
    found: dict[str, ListedProcess] = {}
    for process in untrusted.processes:
        if not process.name.exec_id and process.name.container_id in runtime.workloads:
            found.setdefault(process.name.container_id, process)
    return found


async def _end_abandoned(runtime: ZoneRuntime, abandoned: Iterable[ProcessName]) -> None:
    """Remove execs whose callers were lost with an earlier protectd."""
    for name in abandoned:
        await runtime.agent.delete_exec(name)
