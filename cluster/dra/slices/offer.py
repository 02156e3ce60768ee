"""Which devices of memory the slice has: one for all claims, or one for each claim and one for the next.

Reservations say which claim has which device, so no other record is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.dra.config import ClaimSizes
from cluster.dra.model import HostDevice, Promise

MOST = 64
"""Devices of a slice, of which some have taints (resource.k8s.io, ResourceSliceMaxDevicesWithTaints)."""
_MOST_OF_HOST = 24


@dataclass(frozen=True, slots=True)
class MemoryDevice:
    """``shared``: claims consume its memory; else a claim has all of it, ``claimed`` or still to come."""

    name: str
    bytes: int
    shared: bool = False
    claimed: bool = False


def shared(name: str, claimable: int, held: Sequence[Promise], step: int) -> tuple[MemoryDevice, ...]:
    """One device: the scheduler subtracts what claims consume of it, and nothing else that is reserved."""
    beside = sum(one.total_bytes for one in held if one.device != name)
    return (MemoryDevice(name, _whole(claimable - beside, step), shared=True),)


def split(
    unclaimed: str, claimable: int, held: Sequence[Promise], sizes: ClaimSizes, most: int
) -> tuple[MemoryDevice, ...]:
    """The device for the next claim, unless it would be too small, and those that claims have.

    In all at most ``most``: the scheduler knows from the claims what is taken.
    """
    claimed: dict[str, int] = {}
    for one in held:
        if one.device:
            claimed[one.device] = claimed.get(one.device, 0) + one.total_bytes
    rest = _whole(claimable - sum(one.total_bytes for one in held), sizes.step)
    new = [MemoryDevice(unclaimed, rest)] if rest >= sizes.minimum_device else []
    taken = [MemoryDevice(name, size, claimed=True) for name, size in claimed.items()]
    return (*new, *taken[: max(most - 1, 0)])


def of_host(devices: Sequence[HostDevice], held: Sequence[Promise]) -> tuple[HostDevice, ...]:
    """The host's devices that claims have or can have: none that a zone has without a claim."""
    claimed = {name for one in held for name in one.host_devices}
    return tuple(one for one in devices if not one.zone_id or one.name in claimed)[:_MOST_OF_HOST]


def _whole(size: int, step: int) -> int:
    return max(size, 0) // step * step
