"""PauseZone and ResumeZone: a paused zone keeps its memory and devices, but does not run.

Nothing is recorded: the hypervisor knows whether the domain is paused.  The patrol finds zones paused by
others (``xl pause``).  No paused zone is ended for its silence.
"""

from __future__ import annotations

import logging

from daemonkit.faults import Refused
from daemonkit.logs import fields
from protect.model.toolstack import DomainInfo, DomainState
from protect.model.zone import ZoneState
from protect.state.manager import ZoneManager
from protect.state.runtime import ZoneRuntime

log = logging.getLogger(__name__)


async def pause(manager: ZoneManager, zone_id: str) -> None:
    """Pause a running zone.  Idempotent.  Refused: the zone does not run."""
    await _change(manager, zone_id, "pause zone", paused=True)


async def resume(manager: ZoneManager, zone_id: str) -> None:
    """Let a paused zone run again.  Idempotent.  Refused: the zone is starting, ending, or dead."""
    await _change(manager, zone_id, "resume zone", paused=False)


async def _change(manager: ZoneManager, zone_id: str, operation: str, *, paused: bool) -> None:
    runtime = manager.zone(operation, zone_id)
    async with runtime.lock:
        runtime.end.check(operation, zone_id)
        state, domain = runtime.zone.state, runtime.zone.domain_id
        if state is not ZoneState.RUNNING or domain is None:
            raise Refused(operation, zone_id, f"it is {state.value}")
        await (manager.toolstack.pause if paused else manager.toolstack.unpause)(domain)
        _say(manager, runtime, paused=paused)


def seen(manager: ZoneManager, runtime: ZoneRuntime, domain: DomainInfo) -> None:
    """Note whether the domain of a running zone is paused in the hypervisor."""
    _say(manager, runtime, paused=domain.state is DomainState.PAUSED)


def _say(manager: ZoneManager, runtime: ZoneRuntime, *, paused: bool) -> None:
    if paused == runtime.paused:
        return
    (runtime.resumed.clear if paused else runtime.resumed.set)()
    log.info("zone %s", "paused" if paused else "resumed", extra=fields(zone=runtime.id))
    manager.zone_changed(runtime)
