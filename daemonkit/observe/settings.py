"""The configuration tables of metrics, traces and the audit log, which every daemon has."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

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


def _parts(address: str) -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), port
