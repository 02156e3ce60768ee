"""A rate, made of two readings of a counter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cri.stats.values import LARGEST

_SHORTEST = 10**8


@dataclass(frozen=True, slots=True)
class _Reading:
    timestamp_ns: int
    cpu_ns: int
    rate: int


class Rates:
    """The last reading of each pod and container, for nanoseconds of CPU time per second."""

    def __init__(self) -> None:
        self._last: dict[str, _Reading] = {}

    def rate(self, subject: str, timestamp_ns: int, cpu_ns: int) -> int:
        """The rate since the last reading; readings less than 0.1 s apart repeat it."""
        last = self._last.get(subject)
        passed = timestamp_ns - last.timestamp_ns if last else 0
        if last and 0 <= passed < _SHORTEST:
            return last.rate
        used = max(0, cpu_ns - last.cpu_ns) if last else 0
        rate = min(used * 10**9 // passed, LARGEST) if passed > 0 else 0
        self._last[subject] = _Reading(timestamp_ns, cpu_ns, rate)
        return rate

    def keep(self, ids: Iterable[str]) -> None:
        """Forget all others."""
        for gone in self._last.keys() - set(ids):
            del self._last[gone]
