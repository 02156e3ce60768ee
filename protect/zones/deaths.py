"""Watches for ends of domains, and marks their zones dead with the reason."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from daemonkit.faults import Fault, TooLate
from daemonkit.logs import fields
from daemonkit.tasks import Background
from protect.model.checks import plain_lines
from protect.model.errors import DomainGone
from protect.model.ports import ScratchDisks
from protect.model.toolstack import DomainDeath, Toolstack
from protect.model.zone import ZoneState
from protect.state.death import CONSOLE_BYTES, CONSOLE_LINES, Death, DeathKind, judge, with_console
from protect.state.ledger import Ledger
from protect.state.registry import Registry
from protect.state.runtime import ZoneRuntime
from protect.state.timestamps import now_ns
from protect.workloads.exits import WorkloadExits
from protect.zones.destroy import declare_end, quiesce

log = logging.getLogger(__name__)

_DRAIN_SECONDS = 0.5
"""Seconds for reading the rest of a dead zone's channel."""
_TOLD_SECONDS = 5.0
"""Seconds to wait for the toolstack's report of a domain's end, after the end of the channel."""


@dataclass(frozen=True, slots=True)
class ZoneDeaths:
    """Marks zones dead, and frees the resources of their domains."""

    registry: Registry
    ledger: Ledger
    toolstack: Toolstack
    scratch: ScratchDisks
    tasks: Background
    exits: WorkloadExits

    async def watch(self) -> None:
        """React to deaths of domains for as long as the daemon runs."""
        async for death in self.toolstack.deaths():
            runtime = next((r for r in self.registry.zones.values() if r.zone.uuid == death.uuid), None)
            if runtime is not None:
                self.tasks.spawn(self.on_death(runtime, death), f"mark zone {runtime.id} dead")

    async def on_death(self, runtime: ZoneRuntime, death: DomainDeath) -> None:
        """Mark the zone DEAD and its workloads EXITED, and free the resources of the domain."""
        # Read the console twice: a destroyed domain may lose its console, and else more output may follow.
        first = await self._console(runtime)
        await _drain(runtime)
        console = await self._console(runtime) or first
        await self.kill(runtime, judge(death.reason, console))

    async def condemn(self, runtime: ZoneRuntime, kind: DeathKind, cause: str) -> None:
        """End a zone with a running domain that cannot be trusted or reached any more."""
        lines = plain_lines(await self._console(runtime), CONSOLE_LINES)
        await self.kill(runtime, Death(kind, cause, "\n".join(lines)))

    async def kill(self, runtime: ZoneRuntime, death: Death) -> None:
        """Declare a zone dead, record the death, and destroy the domain."""
        if runtime.death is None:
            runtime.death = death
        declare_end(self.toolstack, runtime, f"it is dead: {death.reason}")
        async with runtime.lock:
            if runtime.zone.state is ZoneState.RUNNING:
                log.warning(
                    "zone died",
                    extra=fields(
                        zone=runtime.id, kind=death.kind.value, cause=death.cause, console=death.console
                    ),
                )
                await self.mark_dead(runtime, death)
                await self.toolstack.destroy(runtime.zone.domain_id)
                self.ledger.release(runtime.id)
                await asyncio.to_thread(self.scratch.remove, runtime.id)

    async def mark_dead(self, runtime: ZoneRuntime, death: Death) -> None:
        """Record the end of a running zone and of its workloads; its lock is held."""
        await quiesce(runtime)
        for workload in list(runtime.workloads.values()):
            await self.exits.mark_killed(workload, death)
        dead = runtime.zone.to(
            ZoneState.DEAD,
            death_kind=death.kind.value,
            death_reason=death.reason,
            console=death.console,
            died_at_ns=now_ns(),
        )
        self.registry.note_zone(runtime, dead)

    async def explain(self, runtime: ZoneRuntime, fault: Fault) -> Fault:
        """Add to the fault of a launch the cause of the death or the failed boot, and the console's end."""
        if not runtime.zone.domain_id or (runtime.end and runtime.death is None):
            # The domain did not exist yet, or a caller ended the zone.
            return fault
        if isinstance(fault, DomainGone):
            await _told(runtime)
        if runtime.death:
            cause, console = f"it died: {runtime.death.reason}", runtime.death.console
        else:
            cause = f"it does not boot: {fault.cause}" if isinstance(fault, TooLate) else fault.cause
            console = "\n".join(plain_lines(await self._console(runtime), CONSOLE_LINES))
        return type(fault)(fault.operation, fault.subject, with_console(cause, console), fault.hint)

    async def _console(self, runtime: ZoneRuntime) -> bytes:
        """The last part of the zone's console (untrusted); empty if the console is gone."""
        try:
            return await self.toolstack.console(runtime.zone.domain_id, CONSOLE_BYTES)
        except Fault as fault:
            log.info("no console of a zone that has ended: %s", fault, extra=fields(zone=runtime.id))
            return b""


async def _drain(runtime: ZoneRuntime) -> None:
    """Wait for the agent's last exit codes and output.

    A unix socket reports its end; a vchan ring does not, hence the bound.
    """
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            for workload in list(runtime.workloads.values()):
                if workload.exiting is not None:
                    await asyncio.wait([workload.exiting])
                elif workload.outputs is not None and runtime.connected:
                    await workload.ended.wait()
    except TimeoutError:
        log.debug("a dead zone's workloads had no end of their own", extra=fields(zone=runtime.id))


async def _told(runtime: ZoneRuntime) -> None:
    """Wait for the toolstack's report of the domain's end."""
    try:
        async with asyncio.timeout(_TOLD_SECONDS):
            await runtime.end.wait()
    except TimeoutError:
        log.warning("the end of a domain was not reported", extra=fields(zone=runtime.id))
