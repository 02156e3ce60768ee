"""A workload found again: after a restart of protectd, or a break of the zone's channel.

Nothing here waits: it runs while the channel's streams are held back.
"""

from __future__ import annotations

import logging

from daemonkit.logs import fields
from protect.model.process import ListedProcess, ProcessState
from protect.model.workload import Reason, WorkloadExit, WorkloadState
from protect.state.manager import ZoneManager, now_ns
from protect.state.runtime import WorkloadRuntime
from protect.workloads.create import open_log
from protect.workloads.exits import release_volumes

log = logging.getLogger(__name__)

LOST = 255
"""Exit code of a workload its zone knows nothing of any more."""


def adopt(manager: ZoneManager, runtime: WorkloadRuntime, untrusted: ListedProcess | None) -> None:
    """Attach its streams to its log again, and believe what its agent says of its state where it can be."""
    state = runtime.workload.state
    if runtime.gone or state in (WorkloadState.CREATING, WorkloadState.EXITED):
        # Its streams are not asked for: the link drops them.
        return
    if runtime.workload.start_error:
        # Its zone has nothing of it.
        return
    if untrusted is None:
        _note_lost(manager, runtime)
        return
    if runtime.outputs is None:
        open_log(manager, runtime).begin(runtime.zone.client, runtime.workload.streams)
    began = untrusted.state in (ProcessState.RUNNING, ProcessState.EXITED)
    if state is WorkloadState.CREATED and began and untrusted.started_at_ns:
        started = min(max(untrusted.started_at_ns, runtime.workload.created_at_ns), now_ns())
        known = {"started_at_ns": started, "pid": untrusted.pid or runtime.workload.pid}
        manager.note_workload(runtime, runtime.workload.to(WorkloadState.RUNNING, **known))


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
