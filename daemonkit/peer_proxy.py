"""The gate in front of a gRPC server: a unix socket of mode 0600 that asks who is there.

grpc in Python neither shows a connection's file descriptor nor takes an accepted one, so it cannot check
SO_PEERCRED itself (docs/adr/0003).  The gate listens on the public path, checks each connection, and pumps
bytes between it and the gRPC server's own socket, which has no name in the file system any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import socket
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from daemonkit.faults import Broken, Invalid, Refused
from daemonkit.logs import fields

log = logging.getLogger(__name__)

_CHUNK = 256 * 1024
_CONNECTIONS = 1024
_PATH_LIMIT = 107  # unix(7): sun_path without its final zero byte
_UCRED = struct.Struct("iII")
_ACCEPT_PAUSE = 0.1


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected, as the kernel vouches for it."""

    pid: int
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> Peer:
    """SO_PEERCRED (unix(7)): who called connect()."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return Peer(*_UCRED.unpack(raw))


@contextlib.contextmanager
def own_lock(path: Path) -> Iterator[None]:
    """Hold ``<path>.lock``; Refused when another live process holds it.

    The kernel frees the lock with its owner, however that ends; the file itself stays.
    """
    lock = path.with_name(path.name + ".lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _take(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Refused(
            "listen on", str(path), "another live daemon serves it", "stop it, or use another run_dir"
        ) from None


def listen(path: Path) -> socket.socket:
    """Listen on ``path`` with mode 0600; the caller holds its lock, so a socket there is a dead daemon's."""
    if len(os.fsencode(path)) > _PATH_LIMIT:
        raise Invalid("listen on", str(path), f"longer than {_PATH_LIMIT} bytes", "use a shorter run_dir")
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise Refused("listen on", str(path), "something that is not a socket is there")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        listener.bind(str(path))
        # Nobody can connect before listen(), so nobody meets the wider mode.
        path.chmod(0o600)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise Broken("listen on", str(path), error.strerror or str(error)) from error
    return listener


class Gate:
    """Accepts on ``listener``, lets root and the daemon's own user in, pumps to ``inner``."""

    def __init__(self, listener: socket.socket, inner: str, name: str) -> None:
        self._listener = listener
        self._inner = inner
        self._name = name
        self._allowed = frozenset({0, os.geteuid()})
        self._pumps: set[Pump] = set()
        self._loop = asyncio.get_running_loop()
        self._buffer = memoryview(bytearray(_CHUNK))

    def open(self) -> None:
        """Begin to accept."""
        self._loop.add_reader(self._listener, self._accept)

    def close_listener(self) -> None:
        """Accept nobody any more; open connections go on."""
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def close(self) -> None:
        """Cut every connection."""
        for pump in tuple(self._pumps):
            pump.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:  # out of descriptors or memory: the backlog waits, the loop must not spin
            log.error("accept failed: %s", error, extra=fields(server=self._name))
            self._loop.remove_reader(self._listener)
            self._loop.call_later(_ACCEPT_PAUSE, self._resume)
            return
        if not self._admit(connection):
            connection.close()

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:
            self.open()

    def _admit(self, connection: socket.socket) -> bool:
        peer = peer_of(connection)
        known = fields(server=self._name, pid=peer.pid, uid=peer.uid)
        if peer.uid not in self._allowed:
            log.warning("refused a caller that is neither root nor this daemon's user", extra=known)
            return False
        if len(self._pumps) >= _CONNECTIONS:
            log.warning("refused a caller: %d connections are open", len(self._pumps), extra=known)
            return False
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            inner.connect(self._inner)
            connection.setblocking(False)
        except OSError as error:
            log.error("the gRPC server does not answer: %s", error, extra=known)
            inner.close()
            return False
        log.debug("connected", extra=known)
        pump = Pump(self._loop, connection, inner, self._pumps.discard, self._buffer)
        self._pumps.add(pump)
        return True


class Pump:
    """Two sockets joined: what one sends the other gets, with back-pressure and half-close."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        outer: socket.socket,
        inner: socket.socket,
        done: Callable[[Pump], None],
        buffer: memoryview,
    ) -> None:
        """``buffer``: bytes are in it during a callback alone, so all pumps of a loop may have the same."""
        self._sockets = (outer, inner)
        self._done = done
        self._ways = (
            _Way(loop, outer, inner, self._ended, buffer),
            _Way(loop, inner, outer, self._ended, buffer),
        )

    def close(self) -> None:
        """Cut both directions; again: nothing."""
        if self._sockets[0].fileno() < 0:
            return
        for way in self._ways:
            way.stop()
        for sock in self._sockets:
            sock.close()
        self._done(self)

    def _ended(self, broken: bool) -> None:
        if broken or all(way.finished for way in self._ways):
            self.close()


class _Way:
    """One direction.  Usually a read is followed by one complete write, within one callback."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        source: socket.socket,
        target: socket.socket,
        ended: Callable[[bool], None],
        buffer: memoryview,
    ) -> None:
        self._loop = loop
        self._buffer = buffer
        self._source = source
        self._target = target
        self._ended = ended
        self._waiting = memoryview(b"")
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
        rest = self._send(self._buffer[:size])
        if rest:  # nothing more is read until it is gone
            self._waiting = memoryview(bytes(rest))
            self._loop.remove_reader(self._source)
            self._loop.add_writer(self._target, self._flush)

    def _send(self, data: memoryview) -> memoryview:
        """What did not fit."""
        try:
            return data[self._target.send(data) :]
        except (BlockingIOError, InterruptedError):
            return data
        except OSError:
            self._ended(True)
            return data[:0]

    def _flush(self) -> None:
        self._waiting = self._send(self._waiting)
        if not self._waiting and not self.finished:
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
