"""Ends a running zone with an unreachable agent: nobody can end, enter or watch its workloads."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from daemonkit.tasks import race
from protect.config import Timeouts
from protect.model.lifetime import End
from protect.model.toolstack import DomainState, Toolstack
from protect.state.death import DeathKind
from protect.state.runtime import ZoneRuntime
from protect.zones.deaths import ZoneDeaths


@dataclass(frozen=True, slots=True)
class SilenceWatch:
    """Ends running zones whose agents stay silent."""

    toolstack: Toolstack
    stopping: End
    deaths: ZoneDeaths
    timeouts: Timeouts

    async def wait(self, runtime: ZoneRuntime) -> None:
        """Wait until the zone's channel is connected; end the zone after running too long without a channel.

        A paused zone may stay silent.
        """
        limit = self.timeouts.silence
        while limit and not runtime.heard.is_set():
            try:
                async with asyncio.timeout(limit):
                    await race(runtime.heard.wait(), race(runtime.end.wait(), self.stopping.wait()))
                return
            except TimeoutError:
                domain = await self.toolstack.find(runtime.zone.uuid)
            if domain is not None and domain.state is DomainState.RUNNING and not runtime.heard.is_set():
                cause = f"its agent could not be reached for {limit:g} s, although its domain runs"
                await self.deaths.condemn(runtime, DeathKind.CHANNEL_LOST, cause)
                return
