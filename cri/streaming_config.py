"""What the streaming server can be told."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from daemonkit.config import Seconds


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """PEM files; all or none."""

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) is not (self.key is None):
            raise ValueError("certificate and key belong together")
        if self.client_ca is not None and self.certificate is None:
            raise ValueError("client_ca is of no use without certificate and key")

    @property
    def on(self) -> bool:
        """Whether the server speaks TLS."""
        return self.certificate is not None


@dataclass(frozen=True, slots=True)
class StreamingConfig:
    """Where exec, attach and port-forward are served, and for how long."""

    address: str = "127.0.0.1:0"
    url_lifetime: Seconds = Seconds(60.0)
    handshake_timeout: Seconds = Seconds(10.0)
    stream_timeout: Seconds = Seconds(30.0)
    idle_timeout: Seconds = Seconds(4 * 3600.0)
    connections: int = 1024
    tls: TlsConfig = field(default_factory=TlsConfig)

    def __post_init__(self) -> None:
        if not self.address.rpartition(":")[2].isdecimal():
            raise ValueError(f"address {self.address!r} is not <IP address>:<port>")
        host = ipaddress.ip_address(self.host)
        if not 0 <= self.port <= 0xFFFF:
            raise ValueError(f"address {self.address!r}: no such port")
        if host.is_unspecified:
            raise ValueError(
                f"address {self.address!r}: clients are sent to it, so it must be one of this host"
            )
        if not host.is_loopback and (not self.tls.on or self.tls.client_ca is None):
            raise ValueError(
                f"address {self.address!r} is not a loopback address: tls.certificate, tls.key and"
                " tls.client_ca are required, as whoever reaches a stream commands a container"
            )
        if self.connections < 1:
            raise ValueError("connections must be at least 1")
        for name in ("url_lifetime", "handshake_timeout", "stream_timeout", "idle_timeout"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be more than 0")

    @property
    def host(self) -> str:
        """An IP address, without brackets."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """0: any."""
        return int(self.address.rpartition(":")[2])
