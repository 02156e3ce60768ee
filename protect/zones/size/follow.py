"""Resizes zones with the dynamic memory policy by their use; each look asks all zones at once."""

from __future__ import annotations

import asyncio
import logging

from daemonkit.faults import Exhausted, Fault
from daemonkit.logs import fields
from daemonkit.tasks import complete
from protect.config import Memory
from protect.model.zone import MemoryPolicy
from protect.state.registry import Registry
from protect.state.runtime import ZoneRuntime
from protect.zones.size.policy import Bounds, Look, decide
from protect.zones.size.sizing import Sizing, with_memory

log = logging.getLogger(__name__)


class MemoryFollower:
    """Looks at the zones periodically, and counts for each zone the looks at which it was too large."""

    def __init__(self, registry: Registry, sizing: Sizing, memory: Memory) -> None:
        self._registry = registry
        self._sizing = sizing
        self._memory = memory
        self._idle: dict[str, int] = {}
        self._refused: set[str] = set()
        """Zones whose last growth failed for lack of memory, to log each only once."""

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await asyncio.sleep(self._memory.policy_period)
            await self.look()

    async def look(self) -> None:
        """Look at each zone once, and resize zones of the wrong size.  Failures are logged."""
        zones = [zone for zone in self._registry.zones.values() if _follows(zone)]
        self._idle = {zone.id: self._idle.get(zone.id, 0) for zone in zones}
        self._refused &= self._idle.keys()
        await asyncio.gather(*(self._follow(zone) for zone in zones))

    async def _follow(self, zone: ZoneRuntime) -> None:
        try:
            async with zone.lock:
                if _follows(zone):
                    await self._decide(zone)
        except Exhausted as fault:
            if zone.id not in self._refused:
                self._refused.add(zone.id)
                log.warning("zone cannot grow: %s", fault, extra=fields(zone=zone.id))
        except Fault as fault:
            log.info("zone's memory stays: %s", fault, extra=fields(zone=zone.id))
        else:
            self._refused.discard(zone.id)

    async def _decide(self, zone: ZoneRuntime) -> None:
        spec = zone.zone.spec
        size = await zone.agent.resize()
        look = Look(spec.memory_bytes, min(size.memory_available_bytes, size.memory_total_bytes))
        bounds = Bounds(spec.memory_min_bytes, spec.policy_limit)
        verdict = decide(look, bounds, self._idle[zone.id])
        self._idle[zone.id] = verdict.idle_looks
        if verdict.memory_bytes != spec.memory_bytes:
            await complete(self._sizing.change(zone, with_memory(spec, verdict.memory_bytes)))


def _follows(zone: ZoneRuntime) -> bool:
    dynamic = zone.zone.spec.memory_policy is MemoryPolicy.DYNAMIC
    return dynamic and zone.running and zone.connected and zone.client.serving and zone.zone.resizes
