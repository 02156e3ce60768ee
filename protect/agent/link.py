"""The port to a zone's channel, as the client needs it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from protect.model.ports import Input, LinkEvents, Sink
from protect.model.process import AgentHello
from protect.model.transport import Transport
from xenpod_proto.channel.v1 import channel_pb2


class AgentLink(Protocol):
    """The channel to one zone's agent; it reconnects by itself until it is closed."""

    @property
    def connected(self) -> bool: ...

    async def open(self, timeout: float) -> AgentHello:
        """The first connection; TooLate, DomainGone, ProtocolViolation."""
        ...

    async def call(self, request: channel_pb2.Request, timeout: float) -> channel_pb2.Reply:
        """One call; the agent's refusal as a fault, LinkDown, TooLate."""
        ...

    def output(self, stream: int, sink: Sink, consumed: int = 0) -> None: ...

    def drop_output(self, stream: int) -> None: ...

    def input(self, stream: int) -> Input: ...

    def drop_input(self, stream: int) -> None: ...

    async def close(self) -> None: ...


Dial = Callable[[], Awaitable[Transport]]
LinkFactory = Callable[[str, Dial, LinkEvents], AgentLink]
"""(zone id, dial, events) to a link that is not open yet."""
