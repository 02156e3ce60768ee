"""The driver's values: protectd's memory and devices, and its promises."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

HOST_DEVICE = "device-"
"""Prefix of the names of host devices in the slice."""
_DIFFERENCE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class ZoneMemory:
    """Memory for zones, in bytes.

    ``total``: all memory for zones.  ``claimable``: the maximum of all claims together, present claims
    included, without the memory of zones without a claim.  ``reserved``: promised to zones and by
    reservations.  ``claimed``: promised by reservations, and ``claims`` is the number of these reservations.
    """

    total: int
    claimable: int
    reserved: int = 0
    free: int = 0
    claimed: int = 0
    claims: int = 0

    @property
    def lost(self) -> bool:
        """Whether the host has less memory than promised: dom0 or other users have taken memory since.

        While a zone is created the figures differ by the domain's growth between two readings.
        """
        return self.reserved - self.total > max(_DIFFERENCE_BYTES, self.total // 64)


@dataclass(frozen=True, slots=True)
class Promise:
    """A reservation of protectd: its id is the uid of its claim.

    ``device``: the claim's device in the slice; "": a reservation without a claim.  ``claim``: the claim's
    namespace and name, for messages.
    """

    claim_uid: str
    total_bytes: int
    pod_uids: tuple[str, ...]
    device: str = ""
    host_devices: tuple[str, ...] = ()
    """Names of the claim's host devices in protectd's configuration."""
    claim: str = ""


@dataclass(frozen=True, slots=True)
class HostDevice:
    """A host device named in protectd's configuration.

    ``pci_address``: "" for a block device.  ``zone_id``: the zone that has the device now.
    """

    name: str
    pci_address: str
    readonly: bool
    zone_id: str

    def slice_name(self, node: str) -> str:
        """Name in the slice.  A hash, because the name in the configuration need not be a DNS label."""
        return HOST_DEVICE + hashlib.sha256(f"{node}/{self.name}".encode()).hexdigest()[:16]
