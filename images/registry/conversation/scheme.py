"""Detects HTTP spoken to a TLS port, and TLS spoken to an HTTP port."""

from __future__ import annotations

import socket
import ssl
from urllib.parse import urlsplit

import requests

from images.registry.conversation.transport import causes
from images.registry.hosts import RegistryHost

_PATIENCE_SECONDS = 5.0
_HANDSHAKE, _ALERT = b"\x16", b"\x15"
# OpenSSL's reasons for an answer without TLS (ssl/record; 1.1 to 3.5).
_NO_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"}
)


def speaks_tls(host: RegistryHost, seconds: float) -> bool:
    """Whether the port answers a TLS greeting with a handshake or an alert; blocks.

    TLS servers answer plain http with a 400, with an alert, or not at all, hence an http answer proves
    nothing.
    """
    parts = urlsplit(f"//{host.netloc}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    outgoing = ssl.MemoryBIO()
    greeting = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=parts.hostname or "")
    try:
        greeting.do_handshake()
    except ssl.SSLWantReadError:
        pass
    try:
        address = (parts.hostname or "", parts.port or 80)
        with socket.create_connection(address, min(seconds, _PATIENCE_SECONDS)) as link:
            link.sendall(outgoing.read())
            return link.recv(1) in (_HANDSHAKE, _ALERT)
    except OSError:
        return False


def met_plain_http(error: BaseException, host: RegistryHost) -> bool:
    """Whether a request failed because the host's port does not speak TLS."""
    request = error.request if isinstance(error, requests.RequestException) else None
    if request is not None and urlsplit(request.url or "").netloc != host.netloc:
        return False  # a redirect led to another host
    found = next((one for one in causes(error) if isinstance(one, ssl.SSLError)), None)
    return found is not None and found.reason in _NO_TLS
