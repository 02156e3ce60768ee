"""A client's connection, which carries bytes both ways, and notices when the client has gone."""

from __future__ import annotations

import asyncio
import contextlib
import select
from typing import Literal, Protocol

READ_SIZE = 128 * 1024
WRITE_HIGH = 256 * 1024
"""Most bytes that a client may leave unread before writers wait."""
LINGER = 5.0
"""Seconds that a client has to read the last bytes and to close."""


class ClientGone(Exception):
    """The client has closed or lost the connection, or broken the protocol: serving it ends."""


class ClientWire(Protocol):
    """Bytes to and from a client."""

    async def receive(self) -> bytes:
        """Read some bytes; b"" at the end.  ClientGone when the connection broke."""
        ...

    async def send(self, data: bytes) -> None:
        """Write, back-pressured; ClientGone."""
        ...

    async def hung_up(self) -> None:
        """Return when the client has closed, although nothing is being received."""
        ...

    async def close(self) -> None:
        """Close once everything sent has gone out, within the linger time."""
        ...


class Activity:
    """The time at which bytes last went through a connection."""

    def __init__(self) -> None:
        self.at = asyncio.get_running_loop().time()

    def touch(self) -> None:
        self.at = asyncio.get_running_loop().time()

    async def idle(self, seconds: float) -> Literal[True]:
        """Wait until nothing has happened for so long, then return True."""
        loop = asyncio.get_running_loop()
        while True:
            left = self.at + seconds - loop.time()
            if left <= 0:
                return True
            await asyncio.sleep(left)


class SocketWire:
    """A TCP or TLS connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, activity: Activity, early: bytes
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._activity = activity
        self._early = early
        writer.transport.set_write_buffer_limits(high=WRITE_HIGH)

    async def receive(self) -> bytes:
        if self._early:
            early, self._early = self._early, b""
            return early
        try:
            data = await self._reader.read(READ_SIZE)
        except OSError as error:
            raise ClientGone(str(error)) from None
        self._activity.touch()
        return data

    async def send(self, data: bytes) -> None:
        if self._writer.is_closing():
            raise ClientGone("the connection is closed")
        self._writer.write(data)
        try:
            await self._writer.drain()
        except OSError as error:
            raise ClientGone(str(error)) from None
        self._activity.touch()

    async def hung_up(self) -> None:
        """Wait for EPOLLRDHUP (epoll_ctl(2)), which the kernel reports although input is still unread.

        Not while the kernel's buffer is full, though: the client's FIN then waits behind its data, and only
        the idle timeout remains.
        """
        loop = asyncio.get_running_loop()
        came = asyncio.Event()
        with select.epoll() as poll:
            poll.register(self._writer.get_extra_info("socket").fileno(), select.EPOLLRDHUP)
            loop.add_reader(poll.fileno(), came.set)
            try:
                await came.wait()
            finally:
                loop.remove_reader(poll.fileno())

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(LINGER):
                await self._drain()
        self._writer.transport.abort()

    async def _drain(self) -> None:
        """Read to the end: closing with unread input would destroy output that is still under way.

        TLS has no half-close that every client understands; our clients close once their streams have ended.
        """
        if self._writer.can_write_eof():
            self._writer.write_eof()
        while await self._reader.read(READ_SIZE):
            pass
