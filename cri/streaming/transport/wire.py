"""A connection as bytes both ways, and the news that the client has left."""

from __future__ import annotations

import asyncio
import contextlib
import select
from typing import Literal, Protocol

READ_SIZE = 128 * 1024
WRITE_HIGH = 256 * 1024
"""Bytes a client may leave unread before its writers wait."""
LINGER = 5.0
"""Seconds a client has to take the last bytes and to close."""


class ClientGone(Exception):
    """The client closed the connection, lost it, or broke the protocol: whoever serves it stops."""


class ClientWire(Protocol):
    """Bytes to and from a client."""

    async def receive(self) -> bytes:
        """What came; b"" at the end.  ClientGone when it broke off."""
        ...

    async def send(self, data: bytes) -> None:
        """Back-pressured; ClientGone."""
        ...

    async def hung_up(self) -> None:
        """Returns when the client has closed, although nothing is received meanwhile."""
        ...

    async def close(self) -> None:
        """What was sent goes out first, within the linger time."""
        ...


class Activity:
    """When the connection last did something."""

    def __init__(self) -> None:
        self.at = asyncio.get_running_loop().time()

    def touch(self) -> None:
        self.at = asyncio.get_running_loop().time()

    async def idle(self, seconds: float) -> Literal[True]:
        """Return True once nothing has happened for so long."""
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
        """EPOLLRDHUP (epoll_ctl(2)): told by the kernel although input is still unread.

        But not while the kernel's own buffer is full: the client's FIN waits behind its data then, and the
        idle deadline is what remains.
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
                await self._say_goodbye()
        self._writer.transport.abort()

    async def _say_goodbye(self) -> None:
        """Read to the end: a close with unread input would destroy output that is still under way.

        TLS has no half-close that every client understands; ours close once their streams have ended.
        """
        if self._writer.can_write_eof():
            self._writer.write_eof()
        while await self._reader.read(READ_SIZE):
            pass
