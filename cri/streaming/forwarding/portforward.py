"""PortForward: a URL through which a client connects to ports of a pod."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus

from cri.state.records import Records
from cri.state.sandbox import Sandbox, SandboxPhase
from cri.streaming.forwarding.connections import ChannelPair, StreamPair, StreamPairs
from cri.streaming.forwarding.forward import Dial, forward
from cri.streaming.http.handshake import Bad, Request
from cri.streaming.http.negotiate import Chosen, negotiate
from cri.streaming.server import Server
from cri.streaming.transport.channels import PROTOCOLS, WebSocketChannels
from cri.streaming.transport.websocket import TunnelWire, WebSocket
from cri.streaming.transport.wire import ClientWire
from cri.zones.client import Zones
from cri.zones.connection import ZoneConnection
from daemonkit.faults import Invalid, Refused
from daemonkit.tasks import race
from xenpod_proto.cri.v1 import runtime_pb2 as cri

MOST_PORTS = 64
"""Most ports of one request: each takes two of at most 128 channels."""


class Style(Enum):
    """Separation of a client's connections: by streams or by channels."""

    STREAMS = "streams"
    CHANNELS = "channels"
    BASE64 = "base64"


_SPDY: Mapping[str, Style] = {"": Style.STREAMS, "portforward.k8s.io": Style.STREAMS}
_WEBSOCKET: Mapping[str, Style] = {
    # SPDY in binary messages (two names in KEP-4006)
    "SPDY/3.1+portforward.k8s.io": Style.STREAMS,
    "v2.portforward.k8s.io": Style.STREAMS,
    "": Style.CHANNELS,
    "v4.channel.k8s.io": Style.CHANNELS,
    "v4.base64.channel.k8s.io": Style.BASE64,
}


@dataclass(frozen=True, slots=True)
class ForwardJob:
    """A port-forward; only clients with channels need ``ports``."""

    subject: str
    namespace: str
    ports: tuple[int, ...]
    dial: Dial
    kind: str = "portforward"
    size: int = 0

    @property
    def pod(self) -> str:
        return self.subject

    def negotiate(self, request: Request) -> Chosen[Style]:
        chosen = negotiate(request, _SPDY, _WEBSOCKET)
        if chosen.protocol is not Style.STREAMS and not self.ports:
            raise Bad(HTTPStatus.BAD_REQUEST, "this sub-protocol needs the ports in the PortForward request")
        return chosen

    async def serve(
        self, wire: ClientWire, chosen: Chosen[Style], stream_timeout: float, stopping: asyncio.Event
    ) -> None:
        await race(self._serve(wire, chosen, stream_timeout), stopping.wait())

    async def _serve(self, wire: ClientWire, chosen: Chosen[Style], stream_timeout: float) -> None:
        if chosen.protocol is not Style.STREAMS:
            await self._serve_channels(WebSocket(wire), chosen.protocol)
        elif chosen.websocket:
            tunnel = TunnelWire(WebSocket(wire))
            await StreamPairs(tunnel, self._serve_pair, stream_timeout).run()
            await tunnel.close()
        else:
            await StreamPairs(wire, self._serve_pair, stream_timeout).run()

    async def _serve_pair(self, pair: StreamPair) -> None:
        await forward(pair, self.dial)

    async def _serve_channels(self, socket: WebSocket, style: Style) -> None:
        name = "v4.base64.channel.k8s.io" if style is Style.BASE64 else "v4.channel.k8s.io"
        numbers = range(0, 2 * len(self.ports), 2)
        channels = WebSocketChannels(socket, PROTOCOLS[name], frozenset(numbers))
        pairs = [ChannelPair(port, channels, n) for port, n in zip(self.ports, numbers, strict=True)]

        async def serve() -> None:
            for pair in pairs:
                await pair.greet()
            async with asyncio.TaskGroup() as group:
                for pair in pairs:
                    group.create_task(forward(pair, self.dial))
            await socket.goodbye()

        await race(serve(), channels.run())


def port_forward_url(
    sandboxes: Records[Sandbox], zones: Zones, server: Server, asked: cri.PortForwardRequest
) -> str:
    """A URL for the request; connections are made later, on the client's request."""
    sandbox = sandboxes.find(asked.pod_sandbox_id)
    if sandbox.phase is not SandboxPhase.READY:
        raise Refused("forward ports of", sandbox.id, f"it is {sandbox.phase.value}")
    if len(asked.port) > MOST_PORTS or not all(1 <= port <= 0xFFFF for port in asked.port):
        raise Invalid("forward ports of", sandbox.id, f"want at most {MOST_PORTS} ports between 1 and 65535")

    def dial(port: int) -> AbstractAsyncContextManager[ZoneConnection]:
        return zones.dial(sandbox.id, port)

    return server.url(ForwardJob(sandbox.id, sandbox.config.metadata.namespace, tuple(asked.port), dial))
