"""ZoneFacts: asks a running zone about itself."""

from __future__ import annotations

from protect.model.process import ZoneFacts
from protect.state.registry import Registry


async def facts(registry: Registry, zone_id: str) -> ZoneFacts:
    runtime = registry.zone("ask zone", zone_id)
    return await runtime.agent.facts(runtime.zone.agent_version)
