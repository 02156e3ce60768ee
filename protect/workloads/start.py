"""StartWorkload: starts a prepared workload."""

from __future__ import annotations

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Broken, Fault, Refused
from daemonkit.tasks import complete
from protect.model.checks import printable
from protect.model.errors import CannotStart
from protect.model.ports import ZoneVolumes
from protect.model.workload import START_FAILED, Reason, Workload, WorkloadExit, WorkloadState
from protect.state.registry import Registry
from protect.state.runtime import WorkloadRuntime
from protect.state.timestamps import now_ns
from protect.workloads.exits import release_volumes
from protect.workloads.sharing import kill

_MESSAGE_CHARACTERS = 1024


def start_error(workload: Workload, fault: Fault) -> str:
    """Why a workload cannot be started, with the command if known; crun does not always name the command."""
    what = repr(workload.command) if workload.command else "its command"
    return printable(f"cannot run {what}: {fault.cause}", _MESSAGE_CHARACTERS)


async def start(registry: Registry, volumes: ZoneVolumes, workload_id: str) -> Workload:
    """Start a workload.  Refused: not CREATED, or crun refuses the command.  Broken: the start failed.

    No intent is recorded: if protectd dies half-way, the agent knows whether the workload runs.
    """
    runtime = registry.workload("start workload", workload_id)
    async with runtime.lock:
        state = runtime.workload.state
        if state is not WorkloadState.CREATED or runtime.deleting:
            cause = "it is being deleted" if runtime.deleting else f"it is {state.value}, not created"
            raise Refused("start workload", runtime.id, cause)
        await runtime.zone.agent.ready()
        checkpoint("workload-start.begun")
        if runtime.workload.start_error:
            refused = Refused("start workload", runtime.id, runtime.workload.start_error)
            await complete(_fail(registry, volumes, runtime, refused))
            raise refused
        if runtime.lost_because:
            await complete(
                _fail(registry, volumes, runtime, Refused("start workload", runtime.id, runtime.lost_because))
            )
            raise Refused("start workload", runtime.id, runtime.lost_because)
        # Start and record together: even if the caller goes away, the record has to follow the zone.
        await complete(_start(registry, volumes, runtime))
        return runtime.workload


async def _start(registry: Registry, volumes: ZoneVolumes, runtime: WorkloadRuntime) -> None:
    try:
        pid = await runtime.zone.agent.start_container(runtime.id)
    except CannotStart as fault:
        refused = Refused("start workload", runtime.id, start_error(runtime.workload, fault))
        await _fail(registry, volumes, runtime, refused)
        raise refused from fault
    except Broken as fault:
        await _fail(registry, volumes, runtime, fault)
        raise
    checkpoint("workload-start.started")
    if runtime.workload.state is WorkloadState.CREATED:
        # Else a reconnect in between has reported the start already.
        known = {"started_at_ns": now_ns(), "pid": pid or runtime.workload.pid}
        registry.note_workload(runtime, runtime.workload.to(WorkloadState.RUNNING, **known))
    checkpoint("workload-start.running")
    if runtime.lost_because:
        await kill(runtime)


async def _fail(registry: Registry, volumes: ZoneVolumes, runtime: WorkloadRuntime, fault: Fault) -> None:
    await release_volumes(volumes, runtime)
    end = WorkloadExit(START_FAILED, oom_killed=False, at_ns=now_ns())
    message = printable(fault.cause, _MESSAGE_CHARACTERS)
    registry.note_workload(runtime, runtime.workload.exited(end, Reason.START_ERROR, message))
