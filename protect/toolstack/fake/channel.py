"""The channel of a fake zone: a connection to its agent's unix socket."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

from daemonkit.faults import Unreachable
from protect.model.errors import DomainGone

_BUFFER_BYTES = 256 * 1024


class UnixTransport:
    """A ``Transport`` over a connected stream socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, limit: int) -> bytes:
        """See port.Transport."""
        try:
            return await self._reader.read(limit)
        except ConnectionError:
            return b""

    async def write(self, data: bytes) -> None:
        """See port.Transport."""
        if self._writer.is_closing():
            raise ConnectionResetError("the connection is closed")
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        """See port.Transport."""
        self._writer.transport.abort()


class StalledTransport:
    """A connection that neither sends nor receives (fault injection)."""

    def __init__(self, inner: UnixTransport) -> None:
        self._inner = inner
        self._closed = asyncio.Event()

    async def read(self, limit: int) -> bytes:
        """Wait until the connection is closed."""
        await self._closed.wait()
        return b""

    async def write(self, data: bytes) -> None:
        """Wait until the connection is closed, like a writer whose peer does not read."""
        await self._closed.wait()
        raise ConnectionResetError("the connection is closed")

    async def close(self) -> None:
        """Close the connection; this ends all waits."""
        self._closed.set()
        await self._inner.close()


async def connect(directory: Path, name: str) -> UnixTransport:
    """Connect to a domain's agent.

    fakedom listens before the agent runs; a connection waits in the queue until the agent accepts.
    DomainGone: nothing listens any more; Unreachable: the agent does not accept, and its queue is full.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        _connect(sock, directory)
        reader, writer = await asyncio.open_unix_connection(sock=sock, limit=_BUFFER_BYTES)
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()
        raise DomainGone("open channel", name, "its agent is gone") from None
    except BlockingIOError:
        sock.close()
        raise Unreachable("open channel", name, "its agent does not accept connections") from None
    except BaseException:
        sock.close()
        raise
    return UnixTransport(reader, writer)


def _connect(sock: socket.socket, directory: Path) -> None:
    # By descriptor: a socket address holds 107 bytes, and a run directory's path may be longer.
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sock.connect(f"/proc/self/fd/{fd}/channel.sock")
    finally:
        os.close(fd)
