"""The client's port to a zone's channel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from protect.model.ports import Input, LinkEvents, Sink
from protect.model.process import AgentHello
from protect.model.transport import Transport
from xenpod_proto.channel.v1 import channel_pb2


class AgentLink(Protocol):
    """The channel to one zone's agent; reconnects by itself until closed."""

    @property
    def connected(self) -> bool: ...

    async def open(self, timeout: float) -> AgentHello:
        """Connect for the first time.  TooLate, DomainGone, ProtocolViolation."""
        ...

    async def call(self, request: channel_pb2.Request, timeout: float) -> channel_pb2.Reply:
        """Make one call.  Raises the agent's refusal as its fault, LinkDown, or TooLate."""
        ...

    def ask(self, request: channel_pb2.Request) -> asyncio.Future[channel_pb2.Reply]:
        """Send a call that creates nothing in the zone; the future gets the reply or the fault."""
        ...

    def output(self, stream: int, sink: Sink, consumed: int = 0) -> None: ...

    def drop_output(self, stream: int) -> None: ...

    def input(self, stream: int) -> Input: ...

    def drop_input(self, stream: int) -> None: ...

    async def close(self) -> None: ...


Dial = Callable[[], Awaitable[Transport]]
LinkFactory = Callable[[str, Dial, LinkEvents], AgentLink]
"""Makes a closed link from zone id, dial and events."""
