"""Repeated queries to the agents of all zones; a query creates nothing in a zone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from protect.agent import replies, requests
from protect.agent.agent_client import AgentClient
from protect.model.statistics import StatsKind, ZoneStats
from xenpod_proto.channel.v1 import channel_pb2 as pb


def stats(client: AgentClient, kind: StatsKind, known: Callable[[str], bool]) -> asyncio.Future[ZoneStats]:
    """Ask for statistics.  ``known``: whether the zone has a workload; unknown ids are left out."""
    return client.ask(requests.STATS[kind], lambda reply: replies.stats(reply.stats, known))


def clock(client: AgentClient, add_ns: int, *, step: bool) -> asyncio.Future[int]:
    """Add ``add_ns`` to the zone's clock, with ``step`` at once, else slowly.

    The answer is the new time (untrusted).  Unsupported: an old agent.  Refused: the zone shares its clock.
    """
    request = pb.Request(sync_clock=pb.SyncClock(add_ns=add_ns, step=step))
    return client.ask(request, lambda reply: reply.clock.realtime_ns)
