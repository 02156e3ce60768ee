"""ShutdownZones: end every zone in order, because the host shuts down.

In order: workloads are asked to end; the zone kills the remaining processes, writes back and unmounts its
file systems; last the domain goes.  The newest zones go first.  Records stay: the ends are known after the
boot.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from signal import SIGTERM

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault
from daemonkit.logs import fields
from daemonkit.tasks import complete
from protect.model.toolstack import Toolstack
from protect.model.workload import WorkloadState
from protect.model.zone import ZoneState
from protect.state.daemon_lifetime import AdmissionGate
from protect.state.death import Death, DeathKind
from protect.state.ledger import Ledger
from protect.state.registry import Registry
from protect.state.runtime import WorkloadRuntime, ZoneRuntime
from protect.workloads import control
from protect.zones.deaths import ZoneDeaths
from protect.zones.destroy import declare_end

log = logging.getLogger(__name__)

REASON = "the host was shut down"
_POWER_OFF_SECONDS = 15.0
"""Most seconds of the deadline that are kept for killing, writing back and unmounting."""
_ZONES_AT_ONCE = 16
"""Zones to power off at the same time; each zone writes back its file systems."""


@dataclass(frozen=True, slots=True)
class ZoneShutdown:
    """Ends all zones, because the host shuts down."""

    registry: Registry
    ledger: Ledger
    toolstack: Toolstack
    gate: AdmissionGate
    deaths: ZoneDeaths

    async def shutdown(self, seconds: float) -> list[str]:
        """End all zones within about ``seconds``; returns the ids of remaining zones.

        No zone is admitted afterwards.  The shutdown is carried to its end even if the caller goes away.
        """
        self.gate.closed = "the host is shutting down"
        return await complete(self._shutdown(seconds))

    async def _shutdown(self, seconds: float) -> list[str]:
        begun = asyncio.get_running_loop().time()
        running = [zone for zone in self.registry.zones.values() if zone.zone.state is ZoneState.RUNNING]
        log.warning("ending all zones: the host is shutting down", extra=fields(zones=len(running)))
        grace = seconds - min(_POWER_OFF_SECONDS, seconds / 3)
        await asyncio.gather(*(self._terminate(zone, begun + grace) for zone in running))
        checkpoint("zone-shutdown.terminated")
        turns = asyncio.Semaphore(_ZONES_AT_ONCE)
        newest_first = sorted(running, key=lambda zone: zone.zone.created_at_ns, reverse=True)
        ended = await asyncio.gather(*(self._end(zone, begun + seconds, turns) for zone in newest_first))
        return [zone.id for zone, done in zip(newest_first, ended, strict=True) if not done]

    async def _terminate(self, runtime: ZoneRuntime, until: float) -> None:
        """Ask all workloads of the zone to end, and wait for the ends."""
        try:
            async with asyncio.timeout_at(until):
                await asyncio.gather(*(self._ask(one) for one in list(runtime.workloads.values())))
        except TimeoutError:
            log.warning("workloads do not end; they are killed", extra=fields(zone=runtime.id))

    async def _ask(self, workload: WorkloadRuntime) -> None:
        if workload.workload.state is WorkloadState.RUNNING:
            try:
                await control.signal(self.registry, workload.id, SIGTERM, every=False)
            except Fault as fault:
                log.info("not asked to end: %s", fault, extra=fields(workload=workload.id))
                return  # ended by itself, or the zone is silent: nothing to wait for
            await workload.ended.wait()

    async def _end(self, runtime: ZoneRuntime, until: float, turns: asyncio.Semaphore) -> bool:
        """Power the zone off, and free the domain; False: failed."""
        async with turns, runtime.lock:
            if runtime.zone.state is not ZoneState.RUNNING:
                return True  # the zone has died by itself
            await _power_off(runtime, until)
            checkpoint("zone-shutdown.powered-off")
            declare_end(self.toolstack, runtime, f"it is dead: {REASON}")
            await self.deaths.mark_dead(runtime, Death(DeathKind.HOST_SHUT_DOWN, REASON))
            checkpoint("zone-shutdown.recorded")
            try:
                await self.toolstack.destroy(runtime.zone.domain_id)
            except Fault as fault:
                log.error("its domain could not be ended: %s", fault, extra=fields(zone=runtime.id))
                return False
            self.ledger.release(runtime.id)
        return True


async def _power_off(runtime: ZoneRuntime, until: float) -> None:
    """Let the zone power off; after the deadline end the zone by force."""
    try:
        async with asyncio.timeout_at(until):
            await runtime.client.power_off()
            await runtime.end.wait()  # declared at the report of the domain's end
    except (Fault, TimeoutError) as error:
        if not runtime.end:
            log.warning("zone is ended by force: %s", error or "too late", extra=fields(zone=runtime.id))
