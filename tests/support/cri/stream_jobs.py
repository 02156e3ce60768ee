"""Targets of streams in tests: simulated commands, and connections that answer in capitals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from cri.config import StreamingConfig
from cri.streaming.forwarding.portforward import ForwardJob
from cri.streaming.process.command import Command, Wants
from cri.streaming.process.exec import CommandJob
from cri.streaming.process.exit_status import ExitStatus
from cri.streaming.server import Server, serving_streams
from cri.zones.connection import ZoneConnection
from daemonkit.faults import Refused

ALL = Wants(stdin=True, stdout=True, stderr=True, tty=False)
TTY = Wants(stdin=True, stdout=True, stderr=False, tty=True)


@dataclass
class _Changing:
    """A signal between two tests' tasks: a change wakes the waiting task."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@dataclass
class Play(_Changing):
    """Record of a test's commands."""

    begun: int = 0
    cancelled: int = 0
    ended: int = 0

    def job(
        self, act: Callable[[Command], Awaitable[ExitStatus]], wants: Wants = ALL, pod: str = "p1"
    ) -> CommandJob:
        async def run(command: Command) -> ExitStatus:
            self.begun += 1
            self.changed.set()
            try:
                status = await act(command)
                self.ended += 1
                return status
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            finally:
                self.changed.set()

        return CommandJob("exec", "c1", pod, f"of-{pod}", wants, run)


async def echo(command: Command) -> ExitStatus:
    """stdin to stdout, its length to stderr, exit code 3."""
    assert command.stdin is not None
    size = 0
    while data := await command.stdin.read():
        size += len(data)
        await command.stdout(data)
    await command.stderr(f"{size} bytes".encode())
    return ExitStatus(code=3)


async def forever(command: Command) -> ExitStatus:
    """A command that runs until its client goes."""
    await asyncio.Event().wait()
    raise AssertionError


class _Capitals:
    """A connection whose far end sends the input back, in capitals."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(1)

    async def write(self, data: bytes) -> None:
        await self._queue.put(data.upper())

    async def write_eof(self) -> None:
        await self._queue.put(b"")

    async def chunks(self) -> AsyncIterator[bytes]:
        while data := await self._queue.get():
            yield data

    async def drained(self) -> None:
        """Everything was taken."""


@dataclass
class Echo(_Changing):
    """Counts the open connections."""

    refuses: set[int] = field(default_factory=set)
    open: int = 0
    made: int = 0

    @asynccontextmanager
    async def dial(self, port: int) -> AsyncIterator[ZoneConnection]:
        if port in self.refuses:
            raise Refused("dial", f"port {port}", "connection refused")
        self.open += 1
        self.made += 1
        self.changed.set()
        try:
            yield cast(Any, _Capitals())
        finally:
            self.open -= 1
            self.changed.set()


def forwarding(echoes: Echo, ports: tuple[int, ...] = ()) -> ForwardJob:
    return ForwardJob("p1", "of-p1", ports, echoes.dial)


@asynccontextmanager
async def streaming_server(goodbye: float = 0.0, **settings: object) -> AsyncIterator[Server]:
    """Run a server on a free port; at the end clients are cut off at once, unless there is a goodbye."""
    config = StreamingConfig(**settings)  # type: ignore[arg-type]
    async with serving_streams(config, goodbye) as running:
        yield running
