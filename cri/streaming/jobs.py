"""What a URL stands for until its client comes, and how it is served then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from cri.streaming.http.handshake import Request
from cri.streaming.http.negotiate import Chosen, negotiate
from cri.streaming.process.command import SPDY_PROTOCOLS, ChannelCommand, Command, SpdyCommand, Wants
from cri.streaming.process.outcome import Outcome
from cri.streaming.race import first_of
from cri.streaming.transport.channels import PROTOCOLS
from cri.streaming.transport.channels import Protocol as SubProtocol
from cri.streaming.transport.websocket import WebSocket
from cri.streaming.transport.wire import Wire

Conduct = Callable[[Command], Awaitable[Outcome]]
"""Runs it with a client's streams; cancelled when the client goes."""


class Job(Protocol):
    """One URL's."""

    @property
    def kind(self) -> str:
        """The first part of the URL's path."""
        ...

    @property
    def subject(self) -> str:
        """The container's or sandbox's id, for the log."""
        ...

    def negotiate(self, request: Request) -> Chosen[Any]:
        """Bad when there is nothing in common."""
        ...

    async def serve(self, wire: Wire, chosen: Chosen[Any], stream_timeout: float) -> None:
        """Until it has ended, or the client is gone."""
        ...


@dataclass(frozen=True, slots=True)
class CommandJob:
    """An exec or an attach."""

    kind: str
    subject: str
    wants: Wants
    conduct: Conduct

    def negotiate(self, request: Request) -> Chosen[SubProtocol]:
        return negotiate(request, SPDY_PROTOCOLS, PROTOCOLS)

    async def serve(self, wire: Wire, chosen: Chosen[SubProtocol], stream_timeout: float) -> None:
        command: Command
        if chosen.websocket:
            command = ChannelCommand(WebSocket(wire), chosen.protocol, self.wants)
        else:
            command = SpdyCommand(wire, chosen.protocol, self.wants)
        await first_of(self._perform(command, stream_timeout), command.run())

    async def _perform(self, command: Command, stream_timeout: float) -> None:
        try:
            async with asyncio.timeout(stream_timeout):
                await command.ready()
        except TimeoutError:
            await command.end(Outcome(failure="the client did not open its streams in time"))
            return
        await command.end(await self.conduct(command))
