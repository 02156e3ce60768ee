"""The peer-credential proxy before a gRPC server: a unix socket of mode 0600 that checks its callers.

gRPC for Python neither shows a connection's file descriptor nor takes an accepted one, and therefore cannot
check SO_PEERCRED itself (docs/adr/0003).  The proxy listens on the public path, checks each connection, and
copies bytes to and from the gRPC server's own socket. The inner socket's name in the file system is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import socket
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from daemonkit.faults import Broken, Invalid, Refused
from daemonkit.lifecycle import hold_lock
from daemonkit.logs import fields
from daemonkit.observe.callers import Callers

log = logging.getLogger(__name__)

_CHUNK_BYTES = 256 * 1024
_MOST_CONNECTIONS = 1024
_PATH_LIMIT_BYTES = 107  # unix(7): sun_path without its final zero byte
_UCRED = struct.Struct("iII")
_ACCEPT_PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Peer:
    """The connected process, as identified by the kernel."""

    pid: int
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> Peer:
    """The process that called connect(), by SO_PEERCRED (unix(7))."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return Peer(*_UCRED.unpack(raw))


def own_lock(path: Path) -> contextlib.AbstractContextManager[None]:
    """Hold ``<path>.lock``; Refused if another live process holds the lock."""
    cause, hint = "another live daemon serves it", "stop it, or use another run_dir"
    return hold_lock(path.with_name(path.name + ".lock"), Refused("listen on", str(path), cause, hint))


def listen(path: Path) -> socket.socket:
    """Listen on ``path`` with mode 0600.

    The caller holds the lock: an existing socket is a dead daemon's.
    """
    if len(os.fsencode(path)) > _PATH_LIMIT_BYTES:
        raise Invalid(
            "listen on", str(path), f"longer than {_PATH_LIMIT_BYTES} bytes", "use a shorter run_dir"
        )
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise Refused("listen on", str(path), "something that is not a socket is there")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        listener.bind(str(path))
        # Before listen() no client can connect: the wider mode does not matter.
        path.chmod(0o600)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise Broken("listen on", str(path), error.strerror or str(error)) from error
    return listener


class PeerProxy:
    """Accepts connections of root and of the daemon's own user, and joins each to the gRPC server."""

    def __init__(
        self, listener: socket.socket, inner: str, name: str, callers: Callers | None = None
    ) -> None:
        """``inner``: path of the gRPC server's socket; ``name``: the server's, for the log.

        ``callers`` is told of each connection and its process.
        """
        self._callers = callers
        self._listener = listener
        self._inner = inner
        self._name = name
        self._allowed = frozenset({0, os.geteuid()})
        self._connections: set[ProxiedConnection] = set()
        self._loop = asyncio.get_running_loop()
        self._buffer = memoryview(bytearray(_CHUNK_BYTES))

    def open(self) -> None:
        """Start to accept connections."""
        self._loop.add_reader(self._listener, self._accept)

    def close_listener(self) -> None:
        """Accept no more connections; open ones stay open."""
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def close(self) -> None:
        """Close every connection."""
        for connection in tuple(self._connections):
            connection.close()

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:  # out of descriptors or memory: the backlog waits, the loop must not spin
            log.error("accept failed: %s", error, extra=fields(server=self._name))
            self._loop.remove_reader(self._listener)
            self._loop.call_later(_ACCEPT_PAUSE_SECONDS, self._resume)
            return
        if not self._admit(client):
            client.close()

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:
            self.open()

    def _admit(self, client: socket.socket) -> bool:
        peer = peer_of(client)
        known = fields(server=self._name, pid=peer.pid, uid=peer.uid)
        if peer.uid not in self._allowed:
            log.warning("refused a caller that is neither root nor this daemon's user", extra=known)
            return False
        if len(self._connections) >= _MOST_CONNECTIONS:
            log.warning("refused a caller: %d connections are open", len(self._connections), extra=known)
            return False
        server = socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        try:
            if self._callers is not None:
                server.bind(b"")  # a name of the kernel's choice, in the abstract namespace (unix(7))
            server.connect(self._inner)
            client.setblocking(False)
        except OSError as error:
            log.error("the gRPC server does not answer: %s", error, extra=known)
            server.close()
            return False
        log.debug("connected", extra=known)
        ended: Callable[[ProxiedConnection], None] = self._ended
        if self._callers is not None:
            address = server.getsockname()
            self._callers.add(address, peer.uid, peer.pid)
            ended = functools.partial(self._ended, address=address)
        self._connections.add(ProxiedConnection(self._loop, client, server, ended, self._buffer))
        return True

    def _ended(self, connection: ProxiedConnection, address: bytes = b"") -> None:
        self._connections.discard(connection)
        if self._callers is not None:
            self._callers.remove(address)


class ProxiedConnection:
    """Copies both ways between two sockets, with back-pressure and half-close."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        client: socket.socket,
        server: socket.socket,
        ended: Callable[[ProxiedConnection], None],
        buffer: memoryview,
    ) -> None:
        """``buffer`` is used within one callback only: all connections of a loop may share the buffer."""
        self._sockets = (client, server)
        self._ended = ended
        self._directions = (
            _Direction(loop, client, server, self._direction_ended, buffer),
            _Direction(loop, server, client, self._direction_ended, buffer),
        )

    def close(self) -> None:
        """Close both sockets; may be repeated."""
        if self._sockets[0].fileno() < 0:
            return
        for direction in self._directions:
            direction.stop()
        for sock in self._sockets:
            sock.close()
        self._ended(self)

    def _direction_ended(self, broken: bool) -> None:
        if broken or all(direction.finished for direction in self._directions):
            self.close()


class _Direction:
    """Copies from ``source`` to ``target``.  Usually each read is followed by one complete write, within one
    callback.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        source: socket.socket,
        target: socket.socket,
        ended: Callable[[bool], None],
        buffer: memoryview,
    ) -> None:
        """``ended`` is called with True after an error of a socket, with False at the end of the source."""
        self._loop = loop
        self._buffer = buffer
        self._source = source
        self._target = target
        self._ended = ended
        self._unsent = memoryview(b"")
        self.finished = False
        loop.add_reader(source, self._read)

    def stop(self) -> None:
        self.finished = True
        self._loop.remove_reader(self._source)
        self._loop.remove_writer(self._target)

    def _read(self) -> None:
        try:
            size = self._source.recv_into(self._buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._ended(True)
            return
        if not size:
            self._finish()
            return
        unsent = self._send(self._buffer[:size])
        if unsent:  # read no more until all is sent
            self._unsent = memoryview(bytes(unsent))
            self._loop.remove_reader(self._source)
            self._loop.add_writer(self._target, self._flush)

    def _send(self, data: memoryview) -> memoryview:
        """Send as much as fits; returns the rest."""
        try:
            return data[self._target.send(data) :]
        except (BlockingIOError, InterruptedError):
            return data
        except OSError:
            self._ended(True)
            return data[:0]

    def _flush(self) -> None:
        self._unsent = self._send(self._unsent)
        if not self._unsent and not self.finished:
            self._loop.remove_writer(self._target)
            self._loop.add_reader(self._source, self._read)

    def _finish(self) -> None:
        self.stop()
        try:
            self._target.shutdown(socket.SHUT_WR)
        except OSError:
            self._ended(True)
            return
        self._ended(False)
