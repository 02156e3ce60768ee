"""Granules: their names, which of them can be had, and the reservation of those that a container has."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable

from dra.model import HostMemory

PREFIX = "granules-"
"""Ids of reservations that are made here begin with it."""

MOST = 32768
"""Most granules of a node: the kubelet is told all of them at once."""


def granules(memory: HostMemory | None, size: int, held: Collection[str]) -> dict[str, bool]:
    """The granules of a node, by name, and whether they are healthy.

    As many are healthy as there is memory for, those that containers have (``held``) before others.
    ``memory`` None: it is not known, and none is.
    """
    if memory is None:
        return dict.fromkeys(sorted(held), False)
    names = [f"granule-{number:05}" for number in range(min(memory.total // size, MOST))]
    room = max(memory.claimable // size, 0)
    order = [*sorted(held), *(name for name in names if name not in held)]
    healthy = set(order[:room])
    return {name: name in healthy for name in sorted({*names, *held})}


def reservation_id(names: Iterable[str]) -> str:
    """The id of the reservation of a container's granules: the same whenever it is asked for."""
    found = hashlib.sha256("\n".join(sorted(set(names))).encode()).hexdigest()
    return f"{PREFIX}{found[:40]}"
