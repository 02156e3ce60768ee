"""Questions to an agent: what is asked again and again, of every zone, and makes nothing there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from protect.agent import replies, requests
from protect.agent.client import AgentClient
from protect.model.statistics import StatsKind, ZoneStats
from xenpod_proto.channel.v1 import channel_pb2 as pb


def stats(client: AgentClient, kind: StatsKind, known: Callable[[str], bool]) -> asyncio.Future[ZoneStats]:
    """Ask for statistics.  ``known``: whether the zone has this workload; others are left out."""
    return client.ask(requests.STATS[kind], lambda reply: replies.stats(reply.stats, known))


def clock(client: AgentClient, add_ns: int, *, step: bool) -> asyncio.Future[int]:
    """Add to the zone's clock, at once or slowly: the time that it has then (untrusted).

    Unsupported: an old agent; Refused: the clock is not the zone's own.
    """
    request = pb.Request(sync_clock=pb.SyncClock(add_ns=add_ns, step=step))
    return client.ask(request, lambda reply: reply.clock.realtime_ns)
