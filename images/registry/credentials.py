"""A caller's credentials for a registry. Never logged, never stored."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Credentials:
    """At most one kind is set: user with password, an identity (refresh) token, or a registry (bearer) token.

    server: the only host for these credentials; "": any host that asks.
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
        """Whether a host may receive the credentials while serving a registry's images."""
        return bool(self) and (not self.server or self.server in (registry, netloc))

    def fingerprint(self) -> bytes:
        """A key that distinguishes callers with different rights without keeping their secrets."""
        fields = (self.username, self.password, self.identity_token, self.registry_token, self.server)
        return hashlib.sha256(repr(fields).encode()).digest()


ANONYMOUS = Credentials()
