"""Connections of one registry client: only to allowed addresses, and with bounded answers."""

from __future__ import annotations

import http.client
import socket
from typing import Any, ClassVar

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import NameResolutionError, NewConnectionError

from images.registry.conversation.targets import Targets

MAX_INTERIM = 8
"""Limit of responses 100 (Continue) before a final response; servers send one, and only on request."""


class BoundedResponse(http.client.HTTPResponse):
    """A response that refuses endless interim responses."""

    _interim = 0

    def _read_status(self) -> tuple[str, int, str]:
        # http.client's begin() calls this until the status is not 100.
        self._interim += 1
        if self._interim > MAX_INTERIM + 1:
            raise http.client.HTTPException(f"more than {MAX_INTERIM} interim responses")
        status: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]
        return status


class CheckedConnection(HTTPConnection):
    """Connects to an address only after ``targets`` has allowed the address."""

    targets: ClassVar[Targets]
    response_class = BoundedResponse

    def _new_conn(self) -> socket.socket:
        if self.proxy is not None:
            # The operator names the proxy. The adapter has checked the URL behind the proxy.
            return super()._new_conn()
        if self.targets.is_own(self.host, self.port):
            connected = super()._new_conn()
            self.targets.met(connected.getpeername()[0])
            return connected
        return self._connect_checked()

    def _connect_checked(self) -> socket.socket:
        name, last = self._dns_host, None
        try:
            found = socket.getaddrinfo(name, self.port, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError) as error:
            raise NameResolutionError(self.host, self, socket.gaierror(str(error))) from error
        addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
        for address in addresses:
            self.targets.check(name, address)
        try:
            for address in addresses:
                # The address instead of the name: a second lookup could give another address.
                self._dns_host = address
                try:
                    return super()._new_conn()
                except NewConnectionError as error:
                    last = error
        finally:
            self._dns_host = name
        raise last or NewConnectionError(self, f"{name} has no address")


class CheckedTlsConnection(CheckedConnection, HTTPSConnection):
    """The same with TLS."""


def pools(targets: Targets) -> dict[str, type[HTTPConnectionPool]]:
    """For ``PoolManager.pool_classes_by_scheme``."""
    bound: dict[str, Any] = {"targets": targets}
    plain = type("Connection", (CheckedConnection,), bound)
    tls = type("TlsConnection", (CheckedTlsConnection,), bound)
    return {
        "http": type("Pool", (HTTPConnectionPool,), {"ConnectionCls": plain}),
        "https": type("TlsPool", (HTTPSConnectionPool,), {"ConnectionCls": tls}),
    }
