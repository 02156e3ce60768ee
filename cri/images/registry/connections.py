"""Connections to registries that another thread can end, whatever their own thread waits for.

A registry that says nothing would hold a thread, and with it a cancelled pull, for a whole deadline.
Shutting a socket down ends the wait.  http.client gives no hold of the socket all the time: during the
greeting of TLS it belongs to ssl, and with the last answer of a connection it is the answer's alone.  So each
is duplicated as soon as it is connected.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from cri.images.bounds.cancel import CancelToken


class _Request:
    """What one thread does for one caller, and the connections that it has used for that."""

    def __init__(self, token: CancelToken) -> None:
        self.token = token
        self._handles: list[socket.socket] = []

    def uses(self, connected: socket.socket) -> None:
        """End this one too, when the request is cancelled; Cancelled if it is already."""
        self._handles.append(socket.socket(fileno=os.dup(connected.fileno())))
        # Whoever cancelled it before that did not know of this one.
        self.token.check()

    def hang_up(self) -> None:
        """End all of them, from another thread; theirs then reads an end."""
        for handle in tuple(self._handles):
            with suppress(OSError):
                handle.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for handle in self._handles:
            handle.close()


_request: ContextVar[_Request | None] = ContextVar("request", default=None)


@contextmanager
def cancelled_by(token: CancelToken) -> Iterator[None]:
    """While the body runs, what this thread asks of registries ends with Cancelled once ``token`` says so."""
    request = _Request(token)
    before = _request.get()
    try:
        with token.unblocking(request.hang_up):
            _request.set(request)
            yield
    except Exception:
        # What comes of a connection that was hung up is no fault of the registry.
        token.check()
        raise
    finally:
        _request.set(before)
        request.close()


def check_cancelled() -> None:
    """Cancelled, if what this thread asks for is wanted no more."""
    request = _request.get()
    if request is not None:
        request.token.check()


def _use(connected: socket.socket) -> None:
    request = _request.get()
    if request is not None:
        request.uses(connected)


class _Heard(HTTPConnection):
    """Tells the request that uses it of its socket."""

    def _new_conn(self) -> socket.socket:
        connected = super()._new_conn()
        try:
            _use(connected)
        except BaseException:
            connected.close()
            raise
        return connected

    def request(self, *args: Any, **kwargs: Any) -> None:
        if self.sock is not None:
            _use(self.sock)
        super().request(*args, **kwargs)


class _HeardTls(_Heard, HTTPSConnection):
    """The same with TLS."""


class HttpPool(HTTPConnectionPool):
    """A pool of such connections."""

    ConnectionCls = _Heard


class HttpsPool(HTTPSConnectionPool):
    """The same with TLS."""

    ConnectionCls = _HeardTls


POOLS = {"http": HttpPool, "https": HttpsPool}
"""For ``PoolManager.pool_classes_by_scheme``."""
