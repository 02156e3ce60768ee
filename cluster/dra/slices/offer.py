"""The memory devices of the slice: one for all claims, or a device for each claim and a free device.

Reservations name each claim's device; no further record is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.dra.config import ClaimSizes
from cluster.dra.model import HostDevice, Promise

MOST_DEVICES = 64
"""Maximum devices of a slice with tainted devices (resource.k8s.io, ResourceSliceMaxDevicesWithTaints)."""
_MOST_OF_HOST = 24


@dataclass(frozen=True, slots=True)
class MemoryDevice:
    """``shared``: claims consume the device's memory.

    Otherwise a single claim has all of the device's memory, ``claimed`` or in future.
    """

    name: str
    bytes: int
    shared: bool = False
    claimed: bool = False


def shared(name: str, claimable: int, held: Sequence[Promise], step: int) -> tuple[MemoryDevice, ...]:
    """One device: the scheduler subtracts the claims' use, and this function the remaining reservations."""
    beside = sum(one.total_bytes for one in held if one.device != name)
    return (MemoryDevice(name, _whole(claimable - beside, step), shared=True),)


def split(
    unclaimed: str, claimable: int, held: Sequence[Promise], sizes: ClaimSizes, most: int
) -> tuple[MemoryDevice, ...]:
    """The device for the next claim, unless too small, and the devices of claims.

    At most ``most`` devices: the scheduler knows the taken devices from the claims.
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
    """The host's devices that claims have or can have, without devices of zones without a claim."""
    claimed = {name for one in held for name in one.host_devices}
    return tuple(one for one in devices if not one.zone_id or one.name in claimed)[:_MOST_OF_HOST]


def _whole(size: int, step: int) -> int:
    return max(size, 0) // step * step
