"""A reservation: memory and vCPUs of this host, promised to a pod before its zone is made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reservation:
    """``id`` is its maker's, a resource claim's uid for one; ``vcpus`` is 0 where it says nothing of them.

    ``memory_bytes`` is what the zone has; what the hypervisor takes for its domain comes on top.
    ``pod_uids``: the pods it is for.  One zone at a time has it.  ``origin`` is what its maker knows it by
    beside its id, the device of a resource claim for one.  ``devices``: names of devices of the host that the
    zone has, too; with them ``memory_bytes`` may be 0, which says nothing of its size.  ``claim``: for
    people, the claim's namespace and name.
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
    """Memory of zones, in bytes: ``total`` is ``free`` and ``promised``, or less if others took some.

    ``promised`` is to zones and by reservations, with what the hypervisor takes for each domain;
    ``reservations`` is the part of it by reservations, whether a zone has them or not; there are
    ``reservation_count``.  ``foreign`` is held by domains that are not ours, ``dom0`` by the host itself, of
    which file servers of zones may use ``sharing``.
    """

    total: int = 0
    promised: int = 0
    free: int = 0
    reservations: int = 0
    foreign: int = 0
    dom0: int = 0
    sharing: int = 0
    reservation_count: int = 0
