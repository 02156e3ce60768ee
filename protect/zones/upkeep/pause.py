"""PauseZone and ResumeZone: a paused zone keeps its memory and devices, but does not run.

Nothing is recorded: the hypervisor knows whether the domain is paused.  The periodic reconcile finds
zones paused by others (``xl pause``).  No paused zone is ended for its silence.
"""

from __future__ import annotations

import logging

from daemonkit.faults import Refused
from daemonkit.logs import fields
from protect.model.toolstack import DomainInfo, DomainState, Toolstack
from protect.model.zone import ZoneState
from protect.state.registry import Registry
from protect.state.runtime import ZoneRuntime

log = logging.getLogger(__name__)


async def pause(registry: Registry, toolstack: Toolstack, zone_id: str) -> None:
    """Pause a running zone.  Idempotent.  Refused: the zone does not run."""
    await _change(registry, toolstack, zone_id, "pause zone", paused=True)


async def resume(registry: Registry, toolstack: Toolstack, zone_id: str) -> None:
    """Let a paused zone run again.  Idempotent.  Refused: the zone is starting, ending, or dead."""
    await _change(registry, toolstack, zone_id, "resume zone", paused=False)


async def _change(
    registry: Registry, toolstack: Toolstack, zone_id: str, operation: str, *, paused: bool
) -> None:
    runtime = registry.zone(operation, zone_id)
    async with runtime.lock:
        runtime.end.check(operation, zone_id)
        state, domain = runtime.zone.state, runtime.zone.domain_id
        if state is not ZoneState.RUNNING or domain is None:
            raise Refused(operation, zone_id, f"it is {state.value}")
        await (toolstack.pause if paused else toolstack.unpause)(domain)
        _say(registry, runtime, paused=paused)


def seen(registry: Registry, runtime: ZoneRuntime, domain: DomainInfo) -> None:
    """Note whether the domain of a running zone is paused in the hypervisor."""
    _say(registry, runtime, paused=domain.state is DomainState.PAUSED)


def _say(registry: Registry, runtime: ZoneRuntime, *, paused: bool) -> None:
    if paused == runtime.paused:
        return
    (runtime.resumed.clear if paused else runtime.resumed.set)()
    log.info("zone %s", "paused" if paused else "resumed", extra=fields(zone=runtime.id))
    registry.zone_changed(runtime)
