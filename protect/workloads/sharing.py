"""What a zone shares with the host: have it served and mounted for a workload, and end those that lose it."""

from __future__ import annotations

import asyncio
import logging
from signal import SIGKILL

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault, Refused, Unreachable
from daemonkit.logs import fields
from daemonkit.tasks import complete_all, race
from protect.model.process import ProcessName
from protect.model.toolstack import ShareEnd
from protect.model.workload import WorkloadState
from protect.state.manager import ZoneManager
from protect.state.runtime import WorkloadRuntime, ZoneRuntime

log = logging.getLogger(__name__)

_PAUSE = 1.0
"""Seconds before a zone that cannot be reached is tried again."""


async def reach(manager: ZoneManager, runtime: WorkloadRuntime) -> None:
    """Have the zone see its shared directory: before a workload that has volumes there is made in it.

    The first in a zone starts a server; for the others this is one call to the agent.  Refused when the
    server ends meanwhile.
    """
    zone = runtime.zone
    async with zone.sharing:
        session = runtime.session = await manager.toolstack.share(zone.zone.domain_id)
        checkpoint("sharing.served")
        if session:
            await race(zone.agent.mount_shared(session), runtime.share_lost.wait())
    if runtime.lost_because:
        raise Refused("share", f"volumes of {runtime.id}", runtime.lost_because, "try again")
    checkpoint("sharing.mounted")


async def watch(manager: ZoneManager) -> None:
    """React to ends of servers for as long as the daemon runs."""
    async for end in manager.toolstack.share_ends():
        runtime = next((r for r in manager.zones.values() if r.zone.uuid == end.uuid), None)
        if runtime is not None and not runtime.end:
            manager.tasks.spawn(on_end(manager, runtime, end), f"end what used the volumes of {runtime.id}")


async def on_end(manager: ZoneManager, zone: ZoneRuntime, end: ShareEnd) -> None:
    """End the zone's workloads that have volumes: what they have open there is lost to them."""
    log.warning("zone has lost its volumes", extra=fields(zone=zone.id, cause=end.reason))
    cause = f"the file server of its volumes ended: {end.reason}"
    lost = [
        workload
        for name in manager.volumes.users(zone.id)
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
    # Nobody wrote down the sessions of those that an earlier daemon made; there was one server at a time.
    return workload.workload.state is not WorkloadState.CREATING


async def kill(workload: WorkloadRuntime) -> None:
    """End a running one that has lost its volumes; the zone's word of its exit follows.

    One that is not running yet will not be started.
    """
    while (
        workload.workload.state is WorkloadState.RUNNING and workload.exit is None and not workload.zone.end
    ):
        try:
            await workload.zone.agent.signal_process(ProcessName(workload.id), SIGKILL, every=True)
            return
        except Unreachable:
            await asyncio.sleep(_PAUSE)  # it is being adopted
        except Fault as fault:
            log.warning("it goes on without its volumes: %s", fault, extra=fields(workload=workload.id))
            return
