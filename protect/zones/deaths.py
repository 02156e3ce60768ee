"""Watches domains end, marks their zones dead, and says why."""

from __future__ import annotations

import asyncio
import logging

from daemonkit.faults import Fault
from daemonkit.logs import fields
from protect.model.checks import last_lines
from protect.model.toolstack import DomainDeath, ShutdownReason
from protect.model.zone import ZoneState
from protect.state.manager import ZoneManager, now_ns
from protect.state.runtime import ZoneRuntime
from protect.workloads.exits import mark_killed
from protect.zones.destroy import quiesce

log = logging.getLogger(__name__)

_CONSOLE_BYTES = 4096
_CONSOLE_LINES = 6
_REASON_LIMIT = 1024
_DRAIN = 0.5
"""Seconds for which a dead zone's channel is read for what is still in it."""


async def watch(manager: ZoneManager) -> None:
    """React to deaths of domains for as long as the daemon runs."""
    async for death in manager.toolstack.deaths():
        runtime = next((r for r in manager.zones.values() if r.zone.uuid == death.uuid), None)
        if runtime is not None:
            manager.tasks.spawn(on_death(manager, runtime, death), f"mark zone {runtime.id} dead")


async def on_death(manager: ZoneManager, runtime: ZoneRuntime, death: DomainDeath) -> None:
    """Mark the zone DEAD, its workloads EXITED, and free what its domain still holds."""
    await _drain(runtime)
    await kill(manager, runtime, await describe(manager, runtime, death.reason))


async def kill(manager: ZoneManager, runtime: ZoneRuntime, reason: str) -> None:
    """End a zone whose domain has ended, or cannot be trusted any more."""
    manager.declare_end(runtime, f"it is dead: {reason}")
    async with runtime.lock:
        if runtime.zone.state is ZoneState.RUNNING:
            log.warning("zone died", extra=fields(zone=runtime.id, reason=reason))
            await mark_dead(manager, runtime, reason)
            await manager.toolstack.destroy(runtime.zone.domain_id)
            manager.ledger.release(runtime.id)
            await asyncio.to_thread(manager.scratch.remove, runtime.id)


async def mark_dead(manager: ZoneManager, runtime: ZoneRuntime, reason: str) -> None:
    """Record the end of a running zone and of what ran in it; its lock is held."""
    await quiesce(runtime)
    for workload in list(runtime.workloads.values()):
        await mark_killed(manager, workload, reason)
    manager.note_zone(runtime, runtime.zone.to(ZoneState.DEAD, death_reason=reason, died_at_ns=now_ns()))


async def _drain(runtime: ZoneRuntime) -> None:
    """Wait for exit codes and output that the agent sent before its end.

    A closed unix socket says so; a vchan ring does not, hence the bound.
    """
    try:
        async with asyncio.timeout(_DRAIN):
            for workload in list(runtime.workloads.values()):
                if workload.exiting is not None:
                    await asyncio.wait([workload.exiting])
                elif workload.outputs is not None and runtime.connected:
                    await workload.ended.wait()
    except TimeoutError:
        log.debug("a dead zone's workloads had no end of their own", extra=fields(zone=runtime.id))


async def describe(manager: ZoneManager, runtime: ZoneRuntime, reason: ShutdownReason) -> str:
    """The reason of a death as bounded plain text: ``crash: last console line | ...``."""
    try:
        lines = await _console(manager, runtime)
    except Fault as fault:
        log.info("no console of a dead zone: %s", fault)
        return reason.value
    return f"{reason.value}: {lines}" if lines else reason.value


async def with_console(manager: ZoneManager, runtime: ZoneRuntime, fault: Fault) -> Fault:
    """The fault of a launch, with the last lines of the zone's console."""
    if not runtime.zone.domain_id or runtime.end:
        # Not booted at all, or the cause says it already.
        return fault
    try:
        lines = await _console(manager, runtime)
    except Fault:
        # Secondary: the launch's own fault is what matters.
        return fault
    if not lines:
        return fault
    return type(fault)(fault.operation, fault.subject, f"{fault.cause}; its console: {lines}", fault.hint)


async def _console(manager: ZoneManager, runtime: ZoneRuntime) -> str:
    untrusted = await manager.toolstack.console(runtime.zone.domain_id, _CONSOLE_BYTES)
    return last_lines(untrusted, _CONSOLE_LINES, _REASON_LIMIT)
