"""Helpers for tests of the channel: an owner of links, sinks that collect, and waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from protect.model.process import AgentHello, ProcessExited
from xenpod_proto.channel.v1 import channel_pb2 as pb

LIST = pb.Request(list_processes=pb.ListProcesses())


def create(container: str, stdin: bool = False, tty: bool = False) -> pb.Request:
    return pb.Request(create_container=pb.CreateContainer(id=container, stdin=stdin, tty=tty))


class Owner:
    """An owner that registers the streams of ``wanted`` in each ``connected``."""

    def __init__(self) -> None:
        self.hellos: list[tuple[AgentHello, bool]] = []
        self.exits: list[ProcessExited] = []
        self.violations: list[str] = []
        self.on_connected: Callable[[], Awaitable[None]] | None = None
        self._greeted = asyncio.Event()

    async def greeted(self, count: int) -> None:
        """Return after the agent's greeting of this number, counted from 1."""
        async with asyncio.timeout(60):
            while len(self.hellos) < count:
                self._greeted.clear()
                await self._greeted.wait()

    async def connected(self, hello: AgentHello, new_boot: bool) -> None:
        self.hellos.append((hello, new_boot))
        self._greeted.set()
        if self.on_connected is not None:
            await self.on_connected()

    def process_exited(self, exited: ProcessExited) -> None:
        self.exits.append(exited)

    def disconnected(self) -> None:
        """The link connects again by itself."""

    def violation(self, cause: str) -> None:
        self.violations.append(cause)


class Collector:
    """A sink that takes everything; with ``gate`` cleared the sink blocks."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.finished = asyncio.Event()
        self.changed = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def write(self, data: bytes) -> int:
        await self.gate.wait()
        self.data += data
        self.changed.set()
        return len(self.data)

    async def finish(self) -> None:
        self.finished.set()

    async def until(self, size: int) -> None:
        async with asyncio.timeout(60):
            while len(self.data) < size:
                self.changed.clear()
                await self.changed.wait()
