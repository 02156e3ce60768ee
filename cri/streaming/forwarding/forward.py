"""Port-forwards: each of a client's connections joined to one into the zone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from cri.streaming.race import first_of
from cri.streaming.transport.inbox import Inbox
from cri.streaming.transport.wire import ClientGone
from cri.zones.connection import ZoneConnection
from daemonkit.faults import Fault

log = logging.getLogger(__name__)

PIECE = 64 * 1024
"""Bytes in one frame."""

Dial = Callable[[int], AbstractAsyncContextManager[ZoneConnection]]
"""Connects to a port of the pod."""


class Lane(Protocol):
    """The client's side of one connection: its data, and where to say what failed."""

    @property
    def port(self) -> int: ...

    @property
    def input(self) -> Inbox: ...

    @property
    def given_up(self) -> asyncio.Event:
        """Set when the client wants the connection closed at once."""
        ...

    async def write(self, data: bytes) -> None: ...

    async def write_eof(self) -> None: ...

    async def fail(self, text: str) -> None: ...

    async def close(self) -> None:
        """After all of it."""
        ...


async def forward(lane: Lane, dial: Dial) -> None:
    """Until both directions have ended, or one side is gone."""
    try:
        async with dial(lane.port) as connection:
            await first_of(_both_ways(lane, connection), lane.given_up.wait())
    except Fault as fault:
        await lane.fail(f"error forwarding port {lane.port}: {fault}")
    except ClientGone as gone:
        log.debug("port-forward ended: %s", gone)
    finally:
        lane.input.discard()
    await lane.close()


async def _both_ways(lane: Lane, connection: ZoneConnection) -> None:
    upward = asyncio.ensure_future(_upward(lane, connection))
    try:
        async for data in connection.pieces():
            for begin in range(0, len(data), PIECE):
                await lane.write(data[begin : begin + PIECE])
        await lane.write_eof()
        await upward
        await connection.over()
    finally:
        upward.cancel()
        await asyncio.gather(upward, return_exceptions=True)


async def _upward(lane: Lane, connection: ZoneConnection) -> None:
    while data := await lane.input.read():
        await connection.write(data)
    await connection.write_eof()
