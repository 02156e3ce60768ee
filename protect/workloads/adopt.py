"""Adopts workloads after a restart of protectd, or after a break of the zone's channel.

The channel holds its streams back until the adoption is done; ``adopt`` does not wait.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from daemonkit.logs import fields
from daemonkit.tasks import Background, complete_all
from protect.model.ports import ZoneVolumes
from protect.model.process import ListedProcess, ProcessState
from protect.model.workload import Reason, WorkloadExit, WorkloadState
from protect.state.registry import Registry
from protect.state.runtime import WorkloadRuntime, ZoneRuntime
from protect.state.timestamps import now_ns
from protect.state.workload_logs import WorkloadLogs
from protect.workloads.exits import release_volumes
from protect.workloads.file_copies import FileCopies

log = logging.getLogger(__name__)

LOST = 255
"""Exit code of a workload unknown to the agent."""


@dataclass(frozen=True, slots=True)
class WorkloadAdoption:
    """Joins running workloads to their logs and copies again."""

    registry: Registry
    volumes: ZoneVolumes
    logs: WorkloadLogs
    tasks: Background
    copies: FileCopies

    async def open_logs(self, runtime: ZoneRuntime) -> None:
        """Open the logs of continued streams.  No stream moves before ``adopt``."""

        async def opened(workload: WorkloadRuntime) -> None:
            workload.outputs = await self.logs.open(workload)

        wanting = [each for each in runtime.workloads.values() if _goes_on(each) and each.outputs is None]
        await complete_all(opened(each) for each in wanting)

    def adopt(self, runtime: WorkloadRuntime, untrusted: ListedProcess | None) -> None:
        """Attach the streams to the log again, and take over the agent's reported state if possible."""
        if not _goes_on(runtime):
            return
        if untrusted is None:
            self._note_lost(runtime)
            return
        self.copies.adopt(runtime)
        if runtime.outputs is not None and not runtime.outputs.begun:
            runtime.outputs.begin(runtime.zone.client, runtime.workload.streams)
        state = runtime.workload.state
        began = untrusted.state in (ProcessState.RUNNING, ProcessState.EXITED)
        if state is WorkloadState.CREATED and began and untrusted.started_at_ns:
            started = min(max(untrusted.started_at_ns, runtime.workload.created_at_ns), now_ns())
            known = {"started_at_ns": started, "pid": untrusted.pid or runtime.workload.pid}
            self.registry.note_workload(runtime, runtime.workload.to(WorkloadState.RUNNING, **known))

    def _note_lost(self, runtime: WorkloadRuntime) -> None:
        if runtime.deleting:
            return
        log.error("zone has lost a workload", extra=fields(zone=runtime.zone.id, workload=runtime.id))
        self.tasks.spawn(self._release(runtime), f"release volumes of {runtime.id}")
        end = WorkloadExit(LOST, oom_killed=False, at_ns=now_ns())
        self.registry.note_workload(
            runtime, runtime.workload.exited(end, Reason.ERROR, "its zone has lost it")
        )

    async def _release(self, runtime: WorkloadRuntime) -> None:
        async with runtime.lock:
            if not runtime.gone:
                await release_volumes(self.volumes, runtime)


def _goes_on(runtime: WorkloadRuntime) -> bool:
    """Whether the zone may still have the workload; if not, the link drops the streams."""
    ended = runtime.workload.state in (WorkloadState.CREATING, WorkloadState.EXITED)
    return not (runtime.gone or ended or runtime.workload.start_error)
