"""The end of a workload: waits for exit status and last output, then records and publishes it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault
from daemonkit.logs import fields
from daemonkit.tasks import Background
from protect.config import Timeouts
from protect.model.ports import ZoneVolumes
from protect.model.process import ProcessExited
from protect.model.workload import KILLED, Reason, Workload, WorkloadExit, WorkloadState
from protect.state.death import Death, with_console
from protect.state.registry import Registry
from protect.state.runtime import WorkloadRuntime, ZoneRuntime
from protect.state.timestamps import now_ns
from protect.workloads.file_copies import FileCopies

log = logging.getLogger(__name__)

_CODE_LIMIT = 255
_CLOCK_SLACK_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class WorkloadExits:
    """Records and publishes the ends of workloads."""

    registry: Registry
    volumes: ZoneVolumes
    tasks: Background
    copies: FileCopies
    timeouts: Timeouts

    def on_exit(self, zone: ZoneRuntime, untrusted: ProcessExited) -> None:
        """Handle the agent's report of a process's end; repetitions are ignored."""
        reference = untrusted.process
        if reference.exec_id:
            run = zone.execs.get(reference.exec_id)
            if run is not None and run.workload_id == reference.container_id:
                run.exited(min(untrusted.exit_code, _CODE_LIMIT))
            return
        runtime = zone.workloads.get(reference.container_id)
        if runtime is None or runtime.exit is not None or runtime.workload.state is WorkloadState.EXITED:
            return
        runtime.exit = _status_of(runtime.workload, untrusted)
        checkpoint("workload-exit.heard")
        runtime.exiting = self.tasks.spawn(
            self._finish(runtime, runtime.exit), f"end of workload {runtime.id}"
        )

    async def _finish(self, runtime: WorkloadRuntime, end: WorkloadExit) -> None:
        await self._drain(runtime)
        checkpoint("workload-exit.drained")
        await self.copies.give_back(runtime)
        async with runtime.lock:
            if runtime.gone or runtime.workload.state is WorkloadState.EXITED:
                return
            if runtime.outputs is not None:
                await runtime.outputs.close()
            await release_volumes(self.volumes, runtime)
            checkpoint("workload-exit.released")
            lost = runtime.lost_because
            self.registry.note_workload(
                runtime, runtime.workload.exited(end, Reason.VOLUMES_LOST if lost else None, lost)
            )
            checkpoint("workload-exit.recorded")

    async def _drain(self, runtime: WorkloadRuntime) -> None:
        """Wait for all output in the log; bounded, because another process may have inherited the pipe."""
        if runtime.outputs is None:
            return
        try:
            async with asyncio.timeout(self.timeouts.drain):
                await runtime.outputs.drained.wait()
        except TimeoutError:
            log.warning("an ended workload's output stays open: given up", extra=fields(workload=runtime.id))

    async def mark_killed(self, runtime: WorkloadRuntime, death: Death) -> None:
        """Record a workload's end after the zone's death: the exit status if known, else KILLED."""
        async with runtime.lock:
            if runtime.gone or runtime.workload.state in (WorkloadState.EXITED, WorkloadState.CREATING):
                return
            await release_volumes(self.volumes, runtime)
            if runtime.exit is not None:
                self.registry.note_workload(runtime, runtime.workload.exited(runtime.exit))
                return
            end = WorkloadExit(KILLED, oom_killed=False, at_ns=now_ns())
            message = with_console(f"the zone ended: {death.cause}", death.console)
            reason = Reason(f"Zone{death.kind.value}")
            self.registry.note_workload(runtime, runtime.workload.exited(end, reason, message))


def _status_of(workload: Workload, untrusted: ProcessExited) -> WorkloadExit:
    """The exit status, with its text bounded and an impossible time replaced by now."""
    now = now_ns()
    at_ns = untrusted.exited_at_ns
    if not max(workload.created_at_ns, workload.started_at_ns) <= at_ns <= now + _CLOCK_SLACK_NS:
        at_ns = now
    code = min(untrusted.exit_code, _CODE_LIMIT)
    # Agents of 0.1.0 also report OOM kills of other processes of the container.
    oom_killed = untrusted.oom_killed and code == KILLED
    return WorkloadExit(code, oom_killed, at_ns, oom_killed and untrusted.zone_oom)


async def release_volumes(volumes: ZoneVolumes, runtime: WorkloadRuntime) -> None:
    """Detach the volumes of an ended workload; the deletion tries again.  The workload's lock is held.

    The deletion would be too late: the host may want to unmount the sources, and an ended workload can be
    kept for its log.
    """
    runtime.zone.files.release(runtime.id)
    try:
        await volumes.detach(runtime.zone.id, runtime.id)
    except Fault as fault:
        log.warning("volumes of an ended workload stay: %s", fault, extra=fields(workload=runtime.id))


async def release_ended_volumes(volumes: ZoneVolumes, runtime: ZoneRuntime) -> None:
    """Release volumes of ended workloads after an earlier failure."""
    for workload in list(runtime.workloads.values()):
        async with workload.lock:
            if workload.workload.state is WorkloadState.EXITED:
                await release_volumes(volumes, workload)
