"""The small verbs on one workload: SignalWorkload, UpdateWorkload, ReopenLog, WaitWorkload."""

from __future__ import annotations

from signal import NSIG

from daemonkit.faults import Invalid, Missing, Refused
from daemonkit.tasks import race
from protect.model.lifetime import End
from protect.model.process import ProcessName
from protect.model.workload import Workload, WorkloadState
from protect.state.registry import Registry


async def signal(registry: Registry, workload_id: str, number: int, *, every: bool) -> None:
    """Signal the first process of a workload, or all processes.  Refused: the workload does not run."""
    if not 0 < number < NSIG:
        raise Invalid("signal workload", workload_id, f"{number} is not a signal")
    runtime = registry.workload("signal workload", workload_id)
    if runtime.workload.state is not WorkloadState.RUNNING or runtime.exit is not None:
        raise Refused("signal workload", workload_id, "it does not run")
    await runtime.zone.agent.signal_process(ProcessName(workload_id), number, every=every)


async def update(registry: Registry, workload_id: str, resources: bytes) -> None:
    """Change a workload's limits (OCI ``linux.resources``, JSON).  Refused: the workload has ended."""
    runtime = registry.workload("update workload", workload_id)
    async with runtime.lock:
        lives = runtime.workload.state in (WorkloadState.CREATED, WorkloadState.RUNNING)
        if not lives or runtime.gone or runtime.deleting or runtime.exit is not None:
            raise Refused("update workload", workload_id, "it has ended")
        if runtime.workload.start_error:
            # The zone has no process of the workload.
            return
        await runtime.zone.agent.update_container(workload_id, resources)


async def reopen_log(registry: Registry, workload_id: str) -> None:
    """Continue the log in a new file at the log's path.  Refused: the workload has ended."""
    runtime = registry.workload("reopen log", workload_id)
    async with runtime.lock:
        if runtime.workload.state is WorkloadState.EXITED or runtime.outputs is None or runtime.gone:
            raise Refused("reopen log", f"workload {workload_id}", "it does not run")
        await runtime.outputs.log.reopen()


async def wait(registry: Registry, stopping: End, workload_id: str) -> Workload:
    """Wait until a workload has ended and its output is in the log.  Missing: deleted during the wait."""
    runtime = registry.workload("wait for workload", workload_id)
    await race(runtime.ended.wait(), stopping.raised("use", f"workload {workload_id}"))
    if runtime.gone:
        raise Missing("wait for workload", workload_id, "it was deleted")
    return runtime.workload
