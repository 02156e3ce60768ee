"""The driver's values: what protectd has, and what it has promised."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SocketAddress:
    """An IP address and a port of TCP."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes of memory for zones: all, and what is left for claims.

    ``claimable`` leaves out what zones without a claim have, and what others took of the host.  ``reserved``
    is promised to zones and by reservations, ``claimed`` by the latter, of which there are ``claims``.
    """

    total: int
    claimable: int
    reserved: int = 0
    free: int = 0
    claimed: int = 0
    claims: int = 0


@dataclass(frozen=True, slots=True)
class Promise:
    """A reservation of protectd: its id is the uid of the claim it was made for.

    ``claim``: its namespace and name, for people.
    """

    claim_uid: str
    total_bytes: int
    pod_uids: tuple[str, ...]
    claim: str = ""
