"""Serves a zone's shared directory for workloads; ends workloads whose file server died."""

from __future__ import annotations

import asyncio
import logging
from signal import SIGKILL

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault, Refused, Unreachable
from daemonkit.logs import fields
from daemonkit.tasks import Background, complete_all, race
from protect.model.ports import ZoneVolumes
from protect.model.process import ProcessName
from protect.model.toolstack import ShareEnd, Toolstack
from protect.model.workload import WorkloadState
from protect.state.registry import Registry
from protect.state.runtime import WorkloadRuntime, ZoneRuntime

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 1.0
"""Seconds between tries to reach a zone."""


async def reach(toolstack: Toolstack, runtime: WorkloadRuntime) -> None:
    """Mount the shared directory in the zone, before the creation of a workload with shared volumes.

    The first workload of a zone starts a server; later workloads cost one call to the agent.  Refused: the
    server ends during the call.
    """
    zone = runtime.zone
    async with zone.sharing:
        session = runtime.session = await toolstack.share(zone.zone.domain_id)
        checkpoint("sharing.served")
        if session:
            await race(zone.agent.mount_shared(session), runtime.share_lost.wait())
    if runtime.lost_because:
        raise Refused("share", f"volumes of {runtime.id}", runtime.lost_because, "try again")
    checkpoint("sharing.mounted")


async def watch_servers(
    registry: Registry, toolstack: Toolstack, volumes: ZoneVolumes, tasks: Background
) -> None:
    """React to ends of servers for as long as the daemon runs."""
    async for end in toolstack.share_ends():
        runtime = next((r for r in registry.zones.values() if r.zone.uuid == end.uuid), None)
        if runtime is not None and not runtime.end:
            tasks.spawn(on_end(volumes, runtime, end), f"end what used the volumes of {runtime.id}")


async def on_end(volumes: ZoneVolumes, zone: ZoneRuntime, end: ShareEnd) -> None:
    """End the zone's workloads with volumes, because they have lost their open files."""
    log.warning("zone has lost its volumes", extra=fields(zone=zone.id, cause=end.reason))
    cause = f"the file server of its volumes ended: {end.reason}"
    lost = [
        workload
        for name in volumes.users(zone.id)
        if (workload := zone.workloads.get(name)) is not None and _used(workload, end.session)
    ]
    for workload in lost:
        workload.lose_share(cause)
    await complete_all(kill(workload) for workload in lost)


def _used(workload: WorkloadRuntime, session: str) -> bool:
    if workload.exit is not None:
        return False
    if workload.session:
        return workload.session == session
    # An earlier daemon did not record sessions of its workloads; it had one server at a time.
    return workload.workload.state is not WorkloadState.CREATING


async def kill(workload: WorkloadRuntime) -> None:
    """Kill a running workload without its volumes; the zone's report of the exit follows.

    A workload that does not run yet will not be started.
    """
    while (
        workload.workload.state is WorkloadState.RUNNING and workload.exit is None and not workload.zone.end
    ):
        try:
            await workload.zone.agent.signal_process(ProcessName(workload.id), SIGKILL, every=True)
            return
        except Unreachable:
            await asyncio.sleep(_PAUSE_SECONDS)  # the zone's adoption is under way
        except Fault as fault:
            log.warning("it goes on without its volumes: %s", fault, extra=fields(workload=workload.id))
            return
