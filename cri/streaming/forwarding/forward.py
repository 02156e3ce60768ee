"""Copies the bytes of one port-forward connection to a port in the zone, and back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from cri.streaming.transport.inbox import Inbox
from cri.streaming.transport.wire import ClientGone
from cri.zones.connection import ZoneConnection
from daemonkit.faults import Fault
from daemonkit.tasks import gather, race

log = logging.getLogger(__name__)

FRAME_BYTES = 64 * 1024
"""Bytes of data in one frame, at most."""

Dial = Callable[[int], AbstractAsyncContextManager[ZoneConnection]]
"""Connects to a port of the pod for the time of a block."""


class ClientConnection(Protocol):
    """The client's side of a port-forward connection: its data, and its errors."""

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
        """Close after everything has been written."""
        ...


async def forward(client: ClientConnection, dial: Dial) -> None:
    """Serve one connection until both directions have ended, or one side is gone."""
    try:
        async with dial(client.port) as zone:
            await race(_both_ways(client, zone), client.given_up.wait())
    except Fault as fault:
        await client.fail(f"error forwarding port {client.port}: {fault}")
    except ClientGone as gone:
        log.debug("port-forward ended: %s", gone)
    finally:
        client.input.discard()
    await client.close()


async def _both_ways(client: ClientConnection, zone: ZoneConnection) -> None:
    await gather(_to_zone(client, zone), _to_client(client, zone))
    await zone.drained()


async def _to_zone(client: ClientConnection, zone: ZoneConnection) -> None:
    while data := await client.input.read():
        await zone.write(data)
    await zone.write_eof()


async def _to_client(client: ClientConnection, zone: ZoneConnection) -> None:
    async for data in zone.chunks():
        for begin in range(0, len(data), FRAME_BYTES):
            await client.write(data[begin : begin + FRAME_BYTES])
    await client.write_eof()
