"""What a zone has to set on its network interface."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GuestRoute:
    """``destination`` in CIDR notation; ``gateway`` is "" for a route on the link."""

    destination: str
    gateway: str


@dataclass(frozen=True, slots=True)
class GuestNetwork:
    """``mac`` is 6 bytes, ``addresses`` are in CIDR notation, ``routes`` in an order that works."""

    mac: bytes
    mtu: int
    addresses: tuple[str, ...]
    routes: tuple[GuestRoute, ...]
