"""A reservation: memory and vCPUs of this host, promised to a pod before its zone is made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reservation:
    """A promise of memory, vCPUs and devices to pods.  One zone at a time uses a reservation.

    ``id``: chosen by the caller, e.g. the uid of a resource claim.  ``memory_bytes``: memory of the zone,
    without the hypervisor's overhead; 0 (only with ``devices``): no size.  ``vcpus``: 0 for no number.
    ``pod_uids``: pods that may use the reservation.  ``origin``: the caller's second name, e.g. the device of
    a resource claim.  ``devices``: names of devices of the host.  ``claim``: namespace and name of the claim,
    for people.
    """

    id: str
    memory_bytes: int
    vcpus: int
    pod_uids: tuple[str, ...]
    created_at_ns: int
    origin: str = ""
    devices: tuple[str, ...] = ()
    claim: str = ""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Memory for zones, in bytes.

    ``total``: ``free`` plus ``promised``, or less if other domains took some.  ``promised``: to zones and by
    reservations, with the hypervisor's overhead.  ``reservations``: the part of ``promised`` by all
    ``reservation_count`` reservations, in use or not.  ``foreign``: held by domains that are not ours.
    ``dom0``: held by the host; file servers of zones may use ``sharing`` of it.
    """

    total: int = 0
    promised: int = 0
    free: int = 0
    reservations: int = 0
    foreign: int = 0
    dom0: int = 0
    sharing: int = 0
    reservation_count: int = 0
