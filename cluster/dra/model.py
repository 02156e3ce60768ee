"""The driver's values: what protectd has, and what it has promised."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

HOST_DEVICE = "device-"
"""Prefix of the names of host devices in the slice."""
_DIFFERENCE = 64 << 20


@dataclass(frozen=True, slots=True)
class ZoneMemory:
    """Memory for zones, in bytes.

    ``total``: all of it.  ``claimable``: what all claims together can have, present claims included; without
    the memory of zones that have no claim.  ``reserved``: promised to zones and by reservations.
    ``claimed``: promised by reservations, of which there are ``claims``.
    """

    total: int
    claimable: int
    reserved: int = 0
    free: int = 0
    claimed: int = 0
    claims: int = 0

    @property
    def lost(self) -> bool:
        """Whether the host has less than is promised: it has lost memory since, to others or to its dom0.

        Figures of a zone that is being made differ by what its domain takes between two readings of them.
        """
        return self.reserved - self.total > max(_DIFFERENCE, self.total // 64)


@dataclass(frozen=True, slots=True)
class Promise:
    """A reservation of protectd: its id is the uid of the claim it was made for.

    ``device``: the claim's device in the slice; "": it was not made for a claim.  ``claim``: the claim's
    namespace and name, for messages.
    """

    claim_uid: str
    total_bytes: int
    pod_uids: tuple[str, ...]
    device: str = ""
    host_devices: tuple[str, ...] = ()
    """Their names in protectd's configuration."""
    claim: str = ""


@dataclass(frozen=True, slots=True)
class HostDevice:
    """A device of the host that protectd's configuration names.

    ``pci_address``: "" for a block device.  ``zone_id``: the zone that has it now.
    """

    name: str
    pci_address: str
    readonly: bool
    zone_id: str

    def slice_name(self, node: str) -> str:
        """Its name in the slice.  A hash, since the name in the configuration need not be a DNS label."""
        return HOST_DEVICE + hashlib.sha256(f"{node}/{self.name}".encode()).hexdigest()[:16]
