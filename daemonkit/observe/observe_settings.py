"""The configuration tables of metrics, traces and the audit log, in every daemon."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from urllib.parse import urlsplit

from daemonkit.config import Bytes, absolute, at_least, at_most
from daemonkit.convert import WrongKey

_PORTS = 0xFFFF


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """The table ``[metrics]``: where Prometheus finds the daemon."""

    address: str = ""
    """``<loopback IP address>:<port>``; "": metrics are not served."""

    def __post_init__(self) -> None:
        if not self.address:
            return
        host, port = _parts(self.address)
        try:
            loopback = ipaddress.ip_address(host).is_loopback
        except ValueError:
            raise WrongKey("address", f"{self.address!r:.80} is not <IP address>:<port>") from None
        if not (port.isascii() and port.isdecimal() and int(port) <= _PORTS):
            raise WrongKey("address", f"{self.address!r:.80} has no port from 0 to {_PORTS}")
        if not loopback:
            cause = "is not a loopback address, and metrics are served without a password"
            raise WrongKey("address", f"{self.address!r:.80} {cause}: put a proxy in front that has one")

    @property
    def place(self) -> tuple[str, int]:
        """The address and the port."""
        host, port = _parts(self.address)
        return host, int(port)


@dataclass(frozen=True, slots=True)
class TracesConfig:
    """The table ``[traces]``: where spans are sent, and of which calls."""

    endpoint: str = ""
    """The collector, for OTLP over gRPC: ``http://127.0.0.1:4317``, or ``https``; "": nothing is traced."""
    sampling: float = 0.0
    """Share of the calls without a trace of their caller that begin one, from 0 to 1."""

    def __post_init__(self) -> None:
        at_least(0, self, "sampling")
        at_most(1, self, "sampling")
        if not self.endpoint:
            return
        try:
            url = urlsplit(self.endpoint)
            wanted = url.scheme in ("http", "https") and url.hostname and url.port
        except ValueError:
            wanted = None
        if not wanted or url.path not in ("", "/") or url.query or url.username is not None:
            raise WrongKey("endpoint", f"{self.endpoint!r:.80} is not http://<host>:<port>, or https")

    @property
    def insecure(self) -> bool:
        """Whether spans are sent without TLS."""
        return self.endpoint.startswith("http:")


class AuditDestination(Enum):
    """Where the entries of the audit log go."""

    OFF = "off"
    FILE = "file"
    JOURNALD = "journald"


@dataclass(frozen=True, slots=True)
class AuditConfig:
    """The table ``[audit]``: the record of calls that change something."""

    to: AuditDestination = AuditDestination.OFF
    dir: Path | None = None
    """None: ``audit`` in the state directory."""
    file_size: Bytes = Bytes(16 << 20)
    files: int = 8
    """How many are kept; the oldest goes."""
    commands: bool = False
    """Whether to keep the arguments of commands, possibly with secrets; otherwise only their number."""

    def __post_init__(self) -> None:
        absolute(self, "dir")
        at_least(1 << 16, self, "file_size")
        at_least(2, self, "files")
        at_most(1000, self, "files")


def _parts(address: str) -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), port
