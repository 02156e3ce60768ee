"""Watches domains end, and says why."""

from __future__ import annotations

import asyncio
import logging

from daemonkit.faults import Fault
from daemonkit.logs import fields
from protect.checks import last_lines
from protect.model.zone import ZoneState
from protect.state.node import Node, ZoneRuntime, now_ns
from protect.toolstack.port import DomainDeath, ShutdownReason
from protect.workloads.exits import bury
from protect.zones.destroy import quiesce

log = logging.getLogger(__name__)

_CONSOLE_BYTES = 4096
_CONSOLE_LINES = 6
_REASON_LIMIT = 1024
_LAST_WORDS = 0.5
"""Seconds a dead zone's channel has to give what is still in it."""


async def watch(node: Node) -> None:
    """Runs as long as the daemon."""
    async for death in node.toolstack.deaths():
        runtime = next((r for r in node.zones.values() if r.zone.uuid == death.uuid), None)
        if runtime is not None:
            node.tasks.spawn(on_death(node, runtime, death), f"bury zone {runtime.id}")


async def on_death(node: Node, runtime: ZoneRuntime, death: DomainDeath) -> None:
    """Mark the zone DEAD, its workloads EXITED, and free what its domain still holds."""
    await last_words(runtime)
    await _die(node, runtime, await describe(node, runtime, death.reason))


async def condemn(node: Node, runtime: ZoneRuntime, reason: str) -> None:
    """End a zone that cannot be trusted to be what it was."""
    await _die(node, runtime, reason)


async def _die(node: Node, runtime: ZoneRuntime, reason: str) -> None:
    runtime.end.declare(f"it is dead: {reason}")
    async with runtime.lock:
        if runtime.zone.state is ZoneState.RUNNING:
            log.warning("zone died", extra=fields(zone=runtime.id, reason=reason))
            await settle(node, runtime, reason)
            await node.toolstack.destroy(runtime.zone.domain_id)
            node.ledger.release(runtime.id)


async def settle(node: Node, runtime: ZoneRuntime, reason: str) -> None:
    """Record the end of a running zone and of what ran in it; its lock is held."""
    await quiesce(runtime)
    for workload in list(runtime.workloads.values()):
        await bury(node, workload, reason)
    node.note_zone(runtime, runtime.zone.to(ZoneState.DEAD, death_reason=reason, died_at_ns=now_ns()))


async def last_words(runtime: ZoneRuntime) -> None:
    """Let the exit codes and output come in that the agent sent before its end.

    A closed unix socket says so; a vchan ring does not, hence the bound.
    """
    try:
        async with asyncio.timeout(_LAST_WORDS):
            for workload in list(runtime.workloads.values()):
                if workload.exiting is not None:
                    await asyncio.wait([workload.exiting])
                elif workload.outputs is not None and runtime.connected:
                    await workload.settled.wait()
    except TimeoutError:
        log.debug("a dead zone's workloads had no end of their own", extra=fields(zone=runtime.id))


async def describe(node: Node, runtime: ZoneRuntime, reason: ShutdownReason) -> str:
    """``crash: last console line | ...``, bounded, plain."""
    try:
        untrusted = await node.toolstack.console(runtime.zone.domain_id, _CONSOLE_BYTES)
    except Fault as fault:
        log.info("no console of a dead zone: %s", fault)
        return reason.value
    lines = last_lines(untrusted, _CONSOLE_LINES, _REASON_LIMIT)
    return f"{reason.value}: {lines}" if lines else reason.value


async def epitaph(node: Node, runtime: ZoneRuntime, fault: Fault) -> Fault:
    """The fault of a launch, with what the zone's console said last."""
    if not runtime.zone.domain_id or runtime.end:
        # Not booted at all, or the cause says it already.
        return fault
    try:
        untrusted = await node.toolstack.console(runtime.zone.domain_id, _CONSOLE_BYTES)
    except Fault:
        # Secondary: the launch's own fault is what matters.
        return fault
    lines = last_lines(untrusted, _CONSOLE_LINES, _REASON_LIMIT)
    if not lines:
        return fault
    return type(fault)(fault.operation, fault.subject, f"{fault.cause}; its console: {lines}", fault.hint)
