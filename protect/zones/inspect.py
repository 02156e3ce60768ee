"""ZoneFacts: asks a running zone about itself."""

from __future__ import annotations

from protect.model.process import ZoneFacts
from protect.state.manager import ZoneManager


async def facts(manager: ZoneManager, zone_id: str) -> ZoneFacts:
    runtime = manager.zone("ask zone", zone_id)
    return await runtime.agent.facts(runtime.zone.agent_version)
