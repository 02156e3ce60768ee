"""Dial: a TCP connection to the zone's loopback, while the caller stays."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from daemonkit.faults import Exhausted, Fault, Missing
from protect.agent.agent_client import AgentClient
from protect.config import ZoneLimits
from protect.model.lifetime import End
from protect.state.daemon_lifetime import DaemonLifetime
from protect.state.output_memory import OutputMemory
from protect.state.registry import Registry
from protect.stdio.exec_output import ExecOutput

_DATA = "data"


@dataclass(frozen=True, slots=True)
class Connected:
    """The zone has accepted the connection."""


@dataclass(frozen=True, slots=True)
class DialEof:
    """The other end sends no more."""


Output = Connected | bytes | DialEof


async def dial(
    registry: Registry,
    memory: OutputMemory,
    lifetime: DaemonLifetime,
    limits: ZoneLimits,
    zone_id: str,
    port: int,
    data: AsyncIterator[bytes],
) -> AsyncGenerator[Output, None]:
    """Yield Connected, incoming data, and DialEof; return after the end of ``data``.

    The connection closes with the caller's iteration.  Refused: nobody listens.
    """
    runtime = registry.zone("dial", zone_id)
    agent = runtime.agent
    limit = limits.connections_per_zone
    if runtime.dialling >= limit:
        raise Exhausted("dial", f"zone {zone_id}", f"it has {limit} connections, as many as it may")
    runtime.dialling += 1
    name = f"connection to zone {zone_id}"
    try:
        made = await agent.dial(port)
        output = ExecOutput((_DATA,), memory.of(zone_id))
        try:
            agent.output(made.out, output.sink(_DATA))
            yield Connected()
            async with contextlib.AsyncExitStack() as helpers:
                for end in (runtime.end, lifetime.stopping):
                    helpers.callback(lifetime.tasks.spawn(_abort_with(end, output), name).cancel)
                feeding = lifetime.tasks.spawn(_feed(agent, made.into, data), name)
                helpers.callback(feeding.cancel)
                async for _, chunk in output:
                    yield chunk
                yield DialEof()
                await asyncio.wait({feeding})
        finally:
            output.abort(Missing("dial", f"zone {zone_id}", "its caller went away"))
            lifetime.tasks.spawn(agent.hang_up(made), name)
    finally:
        runtime.dialling -= 1


async def _feed(agent: AgentClient, number: int, data: AsyncIterator[bytes]) -> None:
    """Send the caller's data.  If the other end stops reading, drop the data: the caller must not wait."""
    try:
        into = agent.input(number)
        async for chunk in data:
            await into.write(chunk)
        await into.finish()
    except Fault:
        async for _ in data:
            pass


async def _abort_with(end: End, output: ExecOutput) -> None:
    """End the connection with the zone, or with the daemon."""
    await end.wait()
    output.abort(end.fault("use connection to", "the zone"))
