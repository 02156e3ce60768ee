"""A client's connection: carries bytes both ways, and notices the client's departure."""

from __future__ import annotations

import asyncio
import contextlib
import select
from typing import Protocol, cast

from cri.streaming.transport.quota import BufferQuota, PodQuota
from daemonkit.tasks import race

READ_BYTES = 256 * 1024
"""Most bytes of one read."""
WRITE_HIGH_BYTES = 64 * 1024
"""Maximum of bytes left unread by a client, beside the kernel's buffer, before writers wait."""
LINGER_SECONDS = 5.0
"""Seconds for a client to read the last bytes and to close."""


class ClientGone(Exception):
    """The client has closed or lost the connection, or broken the protocol: serving it ends."""


class ClientWire(Protocol):
    """Bytes to and from a client."""

    @property
    def quota(self) -> BufferQuota:
        """The limits of the connection."""
        ...

    async def receive(self) -> bytes:
        """Read some bytes; b"" at the end.  ClientGone: the connection broke."""
        ...

    async def send(self, data: bytes) -> None:
        """Write, back-pressured; ClientGone."""
        ...

    async def hung_up(self) -> None:
        """Return when the client has closed, even if no task receives."""
        ...

    async def close(self) -> None:
        """Close once everything sent has gone out, within the linger time."""
        ...


async def without_effect(wire: ClientWire) -> None:
    """Account for a frame without effect; waits after too many.  ClientGone: the client hung up."""
    seconds = wire.quota.owed_for_nothing()
    if seconds and not await race(asyncio.sleep(seconds, True), wire.hung_up()):
        raise ClientGone("it hung up")


class Activity:
    """The time of the last bytes through a connection."""

    def __init__(self) -> None:
        self.at = asyncio.get_running_loop().time()

    def touch(self) -> None:
        self.at = asyncio.get_running_loop().time()

    async def idle(self, seconds: float) -> str:
        """Wait until nothing has happened for ``seconds``, then return the reason."""
        loop = asyncio.get_running_loop()
        while True:
            left = self.at + seconds - loop.time()
            if left <= 0:
                return "nothing came or went for too long"
            await asyncio.sleep(left)


class Pulled(asyncio.StreamReaderProtocol, asyncio.BufferedProtocol):
    """Reads from the socket once on request: small segments wait in the kernel until their turn."""

    _buffer = memoryview(bytearray(READ_BYTES))
    """Bytes are copied from here immediately after each read: all connections share this buffer."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__(reader)
        self._socket: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._socket = cast(asyncio.Transport, transport)
        self._socket.pause_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._buffer[:nbytes]))
        assert self._socket is not None
        self._socket.pause_reading()


class SocketWire:
    """A TCP or TLS connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """``reader``: the reader of a ``Pulled``."""
        self._reader = reader
        self._writer = writer
        self._early = b""
        self.activity = Activity()
        self.quota = BufferQuota()
        writer.transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)

    def belongs_to(self, pod: PodQuota) -> None:
        """Count the connection's kept bytes for this pod, too."""
        self.quota = BufferQuota(pod=pod)

    def unread(self, data: bytes) -> None:
        """Have the next ``receive`` return these bytes, if any."""
        self._early = data

    async def receive(self) -> bytes:
        if self._early:
            early, self._early = self._early, b""
            return early
        try:
            cast(asyncio.Transport, self._writer.transport).resume_reading()
            data = await self._reader.read(READ_BYTES)
        except OSError as error:
            raise ClientGone(str(error)) from None
        self.activity.touch()
        return data

    async def send(self, data: bytes) -> None:
        if self._writer.is_closing():
            raise ClientGone("the connection is closed")
        self._writer.write(data)
        try:
            await self._writer.drain()
        except OSError as error:
            raise ClientGone(str(error)) from None
        self.activity.touch()

    async def hung_up(self) -> None:
        """Wait for EPOLLRDHUP (epoll_ctl(2)).  The kernel reports a hang-up even before unread input.

        If the kernel's buffer is full, the client's FIN waits behind its data, and only the idle timeout
        remains.
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
        with contextlib.suppress(TimeoutError, OSError, ClientGone):
            async with asyncio.timeout(LINGER_SECONDS):
                await self._drain()
        self._writer.transport.abort()

    async def _drain(self) -> None:
        """Read to the end: closing with unread input would destroy output still under way.

        TLS has no half-close that every client understands; our clients close once their streams have ended.
        """
        if self._writer.can_write_eof():
            self._writer.write_eof()
        while await self.receive():
            pass
