"""How much memory a zone with the dynamic policy should have, from what it uses; a pure function."""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 1 << 20
STEP = 16 * _MIB
"""Sizes are multiples of it, so that a zone is not resized for little."""
TIGHT = 8
"""A zone grows once less than this part of its memory is available."""
SPARE = 4
"""What it is to have besides what it uses: this part of that, and a step."""
PATIENCE = 6
"""How many looks in a row have to find it too large before it shrinks."""
_MUCH = 4
"""It shrinks by at least this part of what it has, so that it does not go up and down around a size."""


@dataclass(frozen=True, slots=True)
class Look:
    """A zone's memory as it is: what it has, what of it its kernel could still give to processes."""

    memory_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """Between what the policy moves."""

    least_bytes: int
    most_bytes: int


@dataclass(frozen=True, slots=True)
class SizeVerdict:
    """The size that a zone should have, and for how many looks in a row it has been too large."""

    memory_bytes: int
    idle_looks: int = 0


def decide(look: Look, bounds: Bounds, idle_looks: int) -> SizeVerdict:
    """Grow at once when memory is tight; shrink when it has not been needed for a while; else leave it.

    ``idle_looks`` is the last verdict's.
    """
    memory = look.memory_bytes
    available = min(look.available_bytes, memory)
    used = memory - available
    wanted = _bounded(_stepped(used + used // SPARE + STEP), bounds)
    if available < memory // TIGHT:
        return SizeVerdict(max(memory, wanted))
    if wanted > memory - memory // _MUCH:
        return SizeVerdict(memory)
    if idle_looks + 1 < PATIENCE:
        return SizeVerdict(memory, idle_looks + 1)
    return SizeVerdict(wanted)


def _stepped(size: int) -> int:
    return -(-size // STEP) * STEP


def _bounded(size: int, bounds: Bounds) -> int:
    return max(bounds.least_bytes, min(size, bounds.most_bytes))
