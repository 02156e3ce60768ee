"""Dial: a TCP connection to the zone's loopback, for as long as its caller stays."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from daemonkit.faults import Exhausted, Fault, Missing
from protect.model.ports import AgentLink
from protect.state.node import End, Node, ZoneRuntime
from protect.stdio.exec_output import ExecOutput
from protect.tasks import whole
from xenpod_proto.channel.v1 import channel_pb2

_CONNECT = 15.0
"""Seconds: longer than the agent's own deadline of 10."""
_DATA = "data"


@dataclass(frozen=True, slots=True)
class Connected:
    """Somebody accepted."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The other end sends no more."""


@dataclass(slots=True)
class _Connection:
    """Its streams, once there are any; ``left``: its caller has gone, so nobody may come to own it."""

    output: ExecOutput
    into: int = 0
    out: int = 0
    left: bool = False


Output = Connected | bytes | Ended


async def dial(
    node: Node, zone_id: str, port: int, data: AsyncIterator[bytes]
) -> AsyncGenerator[Output, None]:
    """Connected, what comes, Ended; then until ``data`` has ended, too.  Refused when nobody listens.

    The connection is closed when the caller stops iterating.
    """
    runtime = node.zone("dial", zone_id)
    link = await runtime.agent()
    limit = node.config.limits.connections_per_zone
    if runtime.dialling >= limit:
        raise Exhausted("dial", f"zone {zone_id}", f"it has {limit} connections, as many as it may")
    runtime.dialling += 1
    made = _Connection(ExecOutput((_DATA,)))
    name = f"connection to zone {zone_id}"
    try:
        await node.tasks.conduct(_begin(runtime, link, port, made), name)
        yield Connected()
        async with contextlib.AsyncExitStack() as helpers:
            for end in (runtime.end, node.stopping):
                helpers.callback(node.tasks.spawn(_abort_with(end, made.output), name).cancel)
            feeding = node.tasks.spawn(_feed(link, made.into, data), name)
            helpers.callback(feeding.cancel)
            async for _, piece in made.output:
                yield piece
            yield Ended()
            await asyncio.wait({feeding})
    finally:
        runtime.dialling -= 1
        made.left = True
        if made.into:
            made.output.abort(Missing("dial", f"zone {zone_id}", "its caller went away"))
            node.tasks.spawn(_close(runtime, link, made), name)


async def let_go(link: AgentLink, into: int, out: int) -> None:
    """Close a connection in both directions."""
    link.drop_output(out)
    # Missing: the agent has closed it already
    with contextlib.suppress(Missing):
        await link.input(into).finish()


async def _begin(runtime: ZoneRuntime, link: AgentLink, port: int, made: _Connection) -> None:
    async def ask() -> None:
        reply = await link.call(channel_pb2.Request(dial=channel_pb2.Dial(port=port)), _CONNECT)
        made.into, made.out = reply.dialed.in_stream, reply.dialed.out_stream
        runtime.connections.add(made.into)
        if made.left:
            await _close(runtime, link, made)
        else:
            link.output(made.out, made.output.sink(_DATA))

    async def begin() -> None:
        # Whole: a connection that was made must not be left without an owner.
        await whole(ask())

    await runtime.end.guard(f"zone {runtime.id}", begin())


async def _close(runtime: ZoneRuntime, link: AgentLink, made: _Connection) -> None:
    runtime.connections.discard(made.into)
    await let_go(link, made.into, made.out)


async def _feed(link: AgentLink, number: int, data: AsyncIterator[bytes]) -> None:
    """What comes after the other end stopped reading is dropped, so that the caller is not held up."""
    try:
        into = link.input(number)
        async for piece in data:
            await into.write(piece)
        await into.finish()
    except Fault:
        async for _ in data:
            pass


async def _abort_with(end: End, output: ExecOutput) -> None:
    """What ends the zone, or us, ends the connection."""
    await end.wait()
    output.abort(end.fault("use connection to", "the zone"))
