"""What a caller may show to a registry: CRI's AuthConfig in all its forms. Never logged, never stored."""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from daemonkit.faults import Invalid
from xenpod_proto.cri.v1 import runtime_pb2


@dataclass(frozen=True)
class Credentials:
    """At most one kind is set: user with password, an identity (refresh) token, or a registry (bearer) token.

    server: the one host they are for; "": whichever host asks.
    """

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    registry_token: str = field(default="", repr=False)
    server: str = ""

    def __bool__(self) -> bool:
        return bool(self.username or self.identity_token or self.registry_token)

    def basic(self) -> str:
        """The value of HTTP basic authentication (RFC 7617)."""
        return base64.b64encode(f"{self.username}:{self.password}".encode()).decode()

    def serve(self, registry: str, netloc: str) -> bool:
        """Whether they may be shown to a host that serves a registry's images."""
        return bool(self) and (not self.server or self.server in (registry, netloc))

    def fingerprint(self) -> bytes:
        """Tells callers with other rights apart without keeping what they showed."""
        fields = (self.username, self.password, self.identity_token, self.registry_token, self.server)
        return hashlib.sha256(repr(fields).encode()).digest()


ANONYMOUS = Credentials()


def from_cri(auth: runtime_pb2.AuthConfig) -> Credentials:
    """Raises Invalid, without saying any of the secret, for a malformed ``auth``."""
    server = _server(auth.server_address)
    if auth.registry_token:
        return Credentials(registry_token=_sendable(auth.registry_token), server=server)
    if auth.username:
        return Credentials(auth.username, auth.password, server=server)
    if auth.identity_token:
        return Credentials(identity_token=auth.identity_token, server=server)
    if not auth.auth:
        return ANONYMOUS
    try:
        username, colon, password = base64.b64decode(auth.auth, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise Invalid("read credentials", "", "auth is not base64 of user:password") from None
    if not colon or not username:
        raise Invalid("read credentials", "", "auth is not base64 of user:password")
    # Docker pads this field with zero bytes.
    return Credentials(username, password.strip("\0"), server=server)


def _sendable(token: str) -> str:
    if not token.isascii() or not token.isprintable():
        raise Invalid("read credentials", "", "the registry token has a character no header may hold")
    return token


def _server(address: str) -> str:
    """ "https://index.docker.io/v1/" is "docker.io"."""
    host = urlsplit(address if "://" in address else f"//{address}").netloc if address else ""
    return "docker.io" if host == "index.docker.io" else host
