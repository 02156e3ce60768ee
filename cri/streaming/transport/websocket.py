"""WebSocket messages over a connection; wsproto (sans-IO, RFC 6455) implements the protocol."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError

from cri.streaming.transport.quota import BufferQuota
from cri.streaming.transport.wire import ClientGone, ClientWire, without_effect
from daemonkit.loop.fair_scheduler import pause

log = logging.getLogger(__name__)

_MOST_PARTS = 1024
"""Maximum of parts handed over at once."""


@dataclass(frozen=True, slots=True)
class MessagePart:
    """A part of a message; ``last``: the message ends with this part."""

    data: bytes
    last: bool
    text: bool = False


class WebSocket:
    """The server's end, after the handshake."""

    def __init__(self, wire: ClientWire) -> None:
        self._wire = wire
        self._protocol = Connection(ConnectionType.SERVER)

    @property
    def quota(self) -> BufferQuota:
        """See ``ClientWire``."""
        return self._wire.quota

    async def parts(self) -> AsyncIterator[list[MessagePart]]:
        """Parts of messages until the client closes, or breaks the protocol; ClientGone if it broke off.

        The size of a message has no limit here; callers with a need for whole messages must set one.
        """
        while data := await self._wire.receive():
            self._protocol.receive_data(data)
            came: list[MessagePart] = []
            for event in self._protocol.events():
                if isinstance(event, CloseConnection):
                    await self._closed_by(event)
                    if came:
                        yield came
                    return
                part = await self._part(event)
                if part:
                    came.append(part)
                if not part or not part.data:
                    await without_effect(self._wire)
                await pause()
                if len(came) >= _MOST_PARTS:
                    yield came
                    came = []
            if came:
                yield came

    async def send(self, data: bytes, *, text: bool = False) -> None:
        """Send one message; back-pressured."""
        message: Event = TextMessage(data=data.decode()) if text else BytesMessage(data=data)
        await self._send(message)

    async def goodbye(self, *, normal: bool = True, reason: str = "") -> None:
        """Send the close frame, unless already sent."""
        code = CloseReason.NORMAL_CLOSURE if normal else CloseReason.INTERNAL_ERROR
        if self._protocol.state is ConnectionState.OPEN:
            await self._send(CloseConnection(code=code, reason=reason))

    async def hung_up(self) -> None:
        """See ``ClientWire``."""
        await self._wire.hung_up()

    async def close(self) -> None:
        """See ``ClientWire``."""
        await self._wire.close()

    async def _part(self, event: Event) -> MessagePart | None:
        match event:
            case BytesMessage():
                return MessagePart(bytes(event.data), event.message_finished)
            case TextMessage():
                return MessagePart(event.data.encode(), event.message_finished, text=True)
            case Ping():
                if self._protocol.state is ConnectionState.OPEN:
                    await self._send(event.response())
        return None

    async def _closed_by(self, event: CloseConnection) -> None:
        """Answer the client's close, or tell the client that it broke the protocol."""
        with contextlib.suppress(ClientGone):
            if self._protocol.state is ConnectionState.REMOTE_CLOSING:
                await self._send(event.response())
            elif self._protocol.state is ConnectionState.OPEN:  # wsproto's answer to garbage
                log.debug("not WebSocket: %s", event.reason)
                await self._send(event)

    async def _send(self, event: Event) -> None:
        try:
            data = self._protocol.send(event)
        except LocalProtocolError as error:
            raise ClientGone(str(error)) from None
        await self._wire.send(data)


class TunnelWire:
    """A WebSocket connection with another protocol's bytes in its binary messages."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._parts = socket.parts()

    @property
    def quota(self) -> BufferQuota:
        return self._socket.quota

    async def receive(self) -> bytes:
        async for parts in self._parts:
            if any(part.text for part in parts):
                raise ClientGone("a text message in a tunnel")
            if data := b"".join(part.data for part in parts):
                return data
        return b""

    async def send(self, data: bytes) -> None:
        await self._socket.send(data)

    async def hung_up(self) -> None:
        await self._socket.hung_up()

    async def close(self) -> None:
        with contextlib.suppress(ClientGone):
            await self._socket.goodbye()
        await self._socket.close()
