"""CPU rates from readings of a counter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cri.stats.values import LARGEST_UINT64

_SECOND_NS = 10**9
_SHORTEST_NS = 1 * _SECOND_NS
"""Shortest time of a rate; a shorter time would only show noise."""
_WINDOW_NS = 5 * _SECOND_NS
"""Age at which a base is replaced by the next reading."""
_SET_BACK_NS = 60 * _SECOND_NS
"""A reading older than the base by this time means a clock set back; an age below means a late reading."""


@dataclass(frozen=True, slots=True)
class _Reading:
    timestamp_ns: int
    cpu_ns: int


@dataclass(frozen=True, slots=True)
class _Kept:
    base: _Reading
    older: _Reading | None = None


class Rates:
    """Rates of pods and containers, in nanoseconds of CPU time per second.

    With enough old readings, a rate covers at least ``_WINDOW_NS``, and less than ``_WINDOW_NS`` more than
    the longest time between two bases.
    """

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self.readings = 0
        """Number of readings so far, of all subjects together."""

    def rate(self, subject: str, timestamp_ns: int, cpu_ns: int) -> int | None:
        """The rate up to this reading; None without an earlier reading at least a second old."""
        self.readings += 1
        now = _Reading(timestamp_ns, cpu_ns)
        kept = self._kept.get(subject)
        if kept is None or _anew(kept.base, now):
            self._kept[subject] = _Kept(now)
            return None
        if timestamp_ns - kept.base.timestamp_ns >= _WINDOW_NS:
            self._kept[subject] = _Kept(now, kept.base)
            return _between(kept.base, now)
        return _between(kept.older or kept.base, now)

    def read_ns(self, subject: str) -> int | None:
        """The time of the base by the clock of the readings; None: no base."""
        kept = self._kept.get(subject)
        return kept.base.timestamp_ns if kept else None

    def keep(self, ids: Iterable[str]) -> None:
        """Keep these subjects, and forget all others."""
        for gone in self._kept.keys() - set(ids):
            del self._kept[gone]


def _anew(base: _Reading, now: _Reading) -> bool:
    """Whether the counter or the clock began anew."""
    passed = now.timestamp_ns - base.timestamp_ns
    return passed < -_SET_BACK_NS or (passed >= 0 and now.cpu_ns < base.cpu_ns)


def _between(since: _Reading, now: _Reading) -> int | None:
    passed = now.timestamp_ns - since.timestamp_ns
    if passed < _SHORTEST_NS:
        return None
    return min(max(0, now.cpu_ns - since.cpu_ns) * _SECOND_NS // passed, LARGEST_UINT64)
