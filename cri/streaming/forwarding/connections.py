"""Port-forward connections of clients: pairs of SPDY streams, or pairs of WebSocket channels."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from cri.streaming.transport.channels import WebSocketChannels
from cri.streaming.transport.inbox import Inbox
from cri.streaming.transport.session import SpdySession, SpdyStream
from cri.streaming.transport.wire import ClientGone, ClientWire
from daemonkit.tasks import Background

_PORT_BYTES = 2


class StreamPair:
    """A pair of SPDY streams."""

    def __init__(self, port: int, data: SpdyStream, error: SpdyStream) -> None:
        self.port = port
        self._data = data
        self._error = error

    @property
    def input(self) -> Inbox:
        return self._data.input

    @property
    def given_up(self) -> asyncio.Event:
        return self._data.reset_by_peer

    async def write(self, data: bytes) -> None:
        await self._data.write(data)

    async def write_eof(self) -> None:
        await self._data.finish()

    async def fail(self, text: str) -> None:
        with contextlib.suppress(ClientGone):
            await self._error.write(text.encode())

    async def close(self) -> None:
        with contextlib.suppress(ClientGone):
            await self._data.finish()
            await self._error.finish()
            self._error.input.discard()


class ChannelPair:
    """A pair of WebSocket channels.  One channel alone cannot end."""

    def __init__(self, port: int, channels: WebSocketChannels, number: int) -> None:
        self.port = port
        self.given_up = asyncio.Event()
        self._channels = channels
        self._number = number

    @property
    def input(self) -> Inbox:
        return self._channels.inboxes[self._number]

    async def greet(self) -> None:
        """Send the port first on both channels, little-endian (the kubelet's v4 protocol)."""
        port = self.port.to_bytes(_PORT_BYTES, "little")
        await self._channels.send(self._number, port)
        await self._channels.send(self._number + 1, port)

    async def write(self, data: bytes) -> None:
        await self._channels.send(self._number, data)

    async def write_eof(self) -> None:
        """Close the connection: a client cannot learn of one direction's end, and would wait for ever."""
        self.given_up.set()

    async def fail(self, text: str) -> None:
        with contextlib.suppress(ClientGone):
            await self._channels.send(self._number + 1, text.encode())

    async def close(self) -> None:
        """Do nothing: the WebSocket closes when all its pairs have ended."""


Serve = Callable[[StreamPair], Coroutine[Any, Any, None]]


class StreamPairs:
    """Serves a connection for each pair of streams that a client opens in one SPDY connection.

    The streams of a pair have the same ``requestid``.  Clients without ids open the error stream first and
    the data stream right after it (the kubelet's portforward.k8s.io protocol).
    """

    def __init__(self, wire: ClientWire, serve: Serve, pair_timeout: float) -> None:
        self._session = SpdySession(wire, self._accept)
        self._serve = serve
        self._timeout = pair_timeout
        self._halves: dict[str, tuple[SpdyStream, asyncio.TimerHandle]] = {}
        self._connections = Background()

    async def run(self) -> None:
        """Serve until the client is gone, then close every connection."""
        try:
            await self._session.run()
        finally:
            for _, timer in self._halves.values():
                timer.cancel()
            await self._connections.close(0)

    def _accept(self, stream: SpdyStream) -> bool:
        kind, port = stream.header("streamtype"), _port(stream.header("port"))
        if kind not in ("error", "data") or port is None:
            return False
        key = stream.header("requestid") or str(stream.number if kind == "error" else stream.number - 2)
        if key not in self._halves:
            loop = asyncio.get_running_loop()
            self._halves[key] = (stream, loop.call_later(self._timeout, self._give_up, key))
            return True
        other, timer = self._halves[key]
        if other.header("streamtype") == kind or _port(other.header("port")) != port:
            return False
        timer.cancel()
        del self._halves[key]
        data, error = (stream, other) if kind == "data" else (other, stream)
        self._connections.spawn(self._serve(StreamPair(port, data, error)), "port-forward")
        return True

    def _give_up(self, key: str) -> None:
        """Give up a pair if its other half did not come in time."""
        stream, _ = self._halves.pop(key)
        self._connections.spawn(_reset(stream), "port-forward")


async def _reset(stream: SpdyStream) -> None:
    with contextlib.suppress(ClientGone):
        await stream.reset()


def _port(untrusted: str) -> int | None:
    if not (untrusted.isascii() and untrusted.isdecimal() and len(untrusted) <= 5):
        return None
    number = int(untrusted)
    return number if 1 <= number <= 0xFFFF else None
