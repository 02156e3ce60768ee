"""Memory of a zone with the dynamic policy, computed from its use; a pure function."""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 1 << 20
STEP_BYTES = 16 * _MIB
"""Unit of sizes, in bytes: small changes cause no resize."""
TIGHT = 8
"""A zone grows if less than 1/TIGHT of its memory is available."""
SPARE = 4
"""Headroom: 1/SPARE of the used memory, plus one step."""
PATIENCE_LOOKS = 6
"""Looks in a row with a too large zone before the zone shrinks."""
_MUCH = 4
"""A zone shrinks by at least 1/_MUCH of its memory, to avoid going up and down around a size."""


@dataclass(frozen=True, slots=True)
class Look:
    """A zone's memory: its size, and the part that the kernel could still give to processes."""

    memory_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds for the policy."""

    least_bytes: int
    most_bytes: int


@dataclass(frozen=True, slots=True)
class SizeVerdict:
    """The right size of a zone, and the number of looks in a row at which the zone was too large."""

    memory_bytes: int
    idle_looks: int = 0


def decide(look: Look, bounds: Bounds, idle_looks: int) -> SizeVerdict:
    """Grow at once if memory is tight; shrink if the memory has been idle for a while; else keep the size.

    ``idle_looks``: from the last verdict.
    """
    memory = look.memory_bytes
    available = min(look.available_bytes, memory)
    used = memory - available
    wanted = _bounded(_stepped(used + used // SPARE + STEP_BYTES), bounds)
    if available < memory // TIGHT:
        return SizeVerdict(max(memory, wanted))
    if wanted > memory - memory // _MUCH:
        return SizeVerdict(memory)
    if idle_looks + 1 < PATIENCE_LOOKS:
        return SizeVerdict(memory, idle_looks + 1)
    return SizeVerdict(wanted)


def _stepped(size: int) -> int:
    return -(-size // STEP_BYTES) * STEP_BYTES


def _bounded(size: int, bounds: Bounds) -> int:
    return max(bounds.least_bytes, min(size, bounds.most_bytes))
