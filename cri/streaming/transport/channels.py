"""Kubernetes' channels over WebSocket: each message begins with the number of its channel.

Source: the channel.k8s.io sub-protocols (client-go's remotecommand, apiserver's wsstream).  Binary protocols
have the number as a byte, base64 protocols as a digit before base64 text.  From v5 on the message (255, n)
ends channel n.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass

from cri.streaming.transport.inbox import Inbox
from cri.streaming.transport.websocket import MessagePart, WebSocket
from cri.streaming.transport.wire import ClientGone
from daemonkit.tasks import race

TEXT_LIMIT_BYTES = 256 * 1024
"""Maximum bytes of a message that is read whole: in base64, or the end of a channel."""
MESSAGE_BYTES = 64 * 1024
"""Most bytes of output in one message."""


@dataclass(frozen=True, slots=True)
class SubProtocol:
    """A sub-protocol."""

    version: int
    base64: bool = False

    @property
    def ends_channels(self) -> bool:
        """Whether the client can end a single channel."""
        return self.version >= 5

    @property
    def statuses(self) -> bool:
        """Whether the error channel carries a v1.Status.  Before v4 it carries text, and only failures."""
        return self.version >= 4


PROTOCOLS: Mapping[str, SubProtocol] = {
    "": SubProtocol(1),
    "channel.k8s.io": SubProtocol(1),
    "base64.channel.k8s.io": SubProtocol(1, base64=True),
    **{f"v{n}.channel.k8s.io": SubProtocol(n) for n in range(1, 6)},
    **{f"v{n}.base64.channel.k8s.io": SubProtocol(n, base64=True) for n in range(1, 5)},
}


class WebSocketChannels:
    """The channels of one connection; ``inboxes``: channels that the client may write to."""

    def __init__(self, socket: WebSocket, protocol: SubProtocol, wanted: frozenset[int]) -> None:
        quota = socket.quota
        self.inboxes = {number: Inbox(quota) for number in wanted}
        self._quota = quota
        self._socket = socket
        self._protocol = protocol
        self._channel: int | None = None
        self._kept = bytearray()

    async def run(self) -> None:
        """Read until the client has closed; ClientGone."""
        parts = self._socket.parts()
        try:
            while True:
                await self._wait_for_space()
                for part in await anext(parts):
                    self._take(part)
        except StopAsyncIteration:
            return
        finally:
            for inbox in self.inboxes.values():
                inbox.end()

    async def send(self, channel: int, data: bytes) -> None:
        """Send output; ``data`` may be empty."""
        view = memoryview(data)
        for begin in range(0, len(data) or 1, MESSAGE_BYTES):
            part = view[begin : begin + MESSAGE_BYTES]
            if self._protocol.base64:
                await self._socket.send(b"%d" % channel + base64.b64encode(part), text=True)
            else:
                await self._socket.send(bytes((channel,)) + part)

    async def _wait_for_space(self) -> None:
        space = self._quota.space
        if not space.is_set() and not await race(space.wait(), self._socket.hung_up()):
            raise ClientGone("it hung up")

    def _take(self, part: MessagePart) -> None:
        if self._protocol.base64 or self._kept or (self._channel is None and part.data[:1] == b"\xff"):
            self._keep(part)
            return
        data = part.data
        if self._channel is None and data:
            self._channel, data = data[0], data[1:]
        # A channel without a reader is no error: clients write to all five.
        if self._channel is not None and (inbox := self.inboxes.get(self._channel)):
            inbox.put(data)
        if part.last:
            self._channel = None

    def _keep(self, part: MessagePart) -> None:
        self._kept += part.data
        self._quota.hold(len(part.data))
        if len(self._kept) > TEXT_LIMIT_BYTES:
            raise ClientGone(f"a message of more than {TEXT_LIMIT_BYTES} bytes")
        if self._quota.pod_half_full:  # no reader could make room for the rest of the message
            raise ClientGone("the streams of its pod have used up their memory")
        if part.last:
            message = bytes(self._kept)
            self._kept.clear()
            self._quota.release(len(message))
            self._message(message)

    def _message(self, message: bytes) -> None:
        if not self._protocol.base64:
            self._end(message)
        elif message:
            try:
                data = base64.b64decode(message[1:], validate=True)
            except binascii.Error:
                raise ClientGone("a message that is not base64") from None
            if inbox := self.inboxes.get(message[0] - ord("0")):
                inbox.put(data)

    def _end(self, message: bytes) -> None:
        if not self._protocol.ends_channels:
            return
        if len(message) != 2:
            raise ClientGone("the end of a channel without its number")
        if inbox := self.inboxes.get(message[1]):
            inbox.end()
