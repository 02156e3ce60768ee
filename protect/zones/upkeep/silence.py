"""Ends a running zone with an unreachable agent: nobody can end, enter or watch its workloads."""

from __future__ import annotations

import asyncio

from daemonkit.tasks import race
from protect.model.toolstack import DomainState
from protect.state.death import DeathKind
from protect.state.manager import ZoneManager
from protect.state.runtime import ZoneRuntime
from protect.zones import deaths


async def wait(manager: ZoneManager, runtime: ZoneRuntime) -> None:
    """Wait until the zone's channel is connected; end the zone after running too long without a channel.

    A paused zone may stay silent.
    """
    limit = manager.config.timeouts.silence
    while limit and not runtime.heard.is_set():
        try:
            async with asyncio.timeout(limit):
                await race(runtime.heard.wait(), race(runtime.end.wait(), manager.stopping.wait()))
            return
        except TimeoutError:
            domain = await manager.toolstack.find(runtime.zone.uuid)
        if domain is not None and domain.state is DomainState.RUNNING and not runtime.heard.is_set():
            cause = f"its agent could not be reached for {limit:g} s, although its domain runs"
            await deaths.condemn(manager, runtime, DeathKind.CHANNEL_LOST, cause)
            return
