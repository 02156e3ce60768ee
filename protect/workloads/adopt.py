"""Adopts workloads after a restart of protectd, or after a break of the zone's channel.

The channel holds its streams back until the adoption is done; ``adopt`` does not wait.
"""

from __future__ import annotations

import logging

from daemonkit.logs import fields
from daemonkit.tasks import complete_all
from protect.model.process import ListedProcess, ProcessState
from protect.model.workload import Reason, WorkloadExit, WorkloadState
from protect.state.manager import ZoneManager, now_ns
from protect.state.runtime import WorkloadRuntime, ZoneRuntime
from protect.workloads import files
from protect.workloads.create import open_log
from protect.workloads.exits import release_volumes

log = logging.getLogger(__name__)

LOST = 255
"""Exit code of a workload unknown to the agent."""


async def open_logs(manager: ZoneManager, runtime: ZoneRuntime) -> None:
    """Open the logs of continued streams.  No stream moves before ``adopt``."""

    async def opened(workload: WorkloadRuntime) -> None:
        workload.outputs = await open_log(manager, workload)

    wanting = [each for each in runtime.workloads.values() if _goes_on(each) and each.outputs is None]
    await complete_all(opened(each) for each in wanting)


def adopt(manager: ZoneManager, runtime: WorkloadRuntime, untrusted: ListedProcess | None) -> None:
    """Attach the streams to the log again, and take over the agent's reported state if possible."""
    if not _goes_on(runtime):
        return
    if untrusted is None:
        _note_lost(manager, runtime)
        return
    files.adopt(manager, runtime)
    if runtime.outputs is not None and not runtime.outputs.begun:
        runtime.outputs.begin(runtime.zone.client, runtime.workload.streams)
    state = runtime.workload.state
    began = untrusted.state in (ProcessState.RUNNING, ProcessState.EXITED)
    if state is WorkloadState.CREATED and began and untrusted.started_at_ns:
        started = min(max(untrusted.started_at_ns, runtime.workload.created_at_ns), now_ns())
        known = {"started_at_ns": started, "pid": untrusted.pid or runtime.workload.pid}
        manager.note_workload(runtime, runtime.workload.to(WorkloadState.RUNNING, **known))


def _goes_on(runtime: WorkloadRuntime) -> bool:
    """Whether the zone may still have the workload; if not, the link drops the streams."""
    ended = runtime.workload.state in (WorkloadState.CREATING, WorkloadState.EXITED)
    return not (runtime.gone or ended or runtime.workload.start_error)


def _note_lost(manager: ZoneManager, runtime: WorkloadRuntime) -> None:
    if runtime.deleting:
        return
    log.error("zone has lost a workload", extra=fields(zone=runtime.zone.id, workload=runtime.id))
    manager.tasks.spawn(_release(manager, runtime), f"release volumes of {runtime.id}")
    end = WorkloadExit(LOST, oom_killed=False, at_ns=now_ns())
    manager.note_workload(runtime, runtime.workload.exited(end, Reason.ERROR, "its zone has lost it"))


async def _release(manager: ZoneManager, runtime: WorkloadRuntime) -> None:
    async with runtime.lock:
        if not runtime.gone:
            await release_volumes(manager, runtime)
