"""Delays between retries."""

from __future__ import annotations

import random

FIRST_SECONDS = 0.05
LONGEST_SECONDS = 5.0


class Backoff:
    """Doubling delays with jitter, in seconds; the first attempt after a success does not wait."""

    def __init__(self, first: float = FIRST_SECONDS, longest: float = LONGEST_SECONDS) -> None:
        self._first = first
        self._longest = longest
        self._next = 0.0

    def delay(self) -> float:
        """The next delay: between half and all of the current step."""
        step = self._next
        self._next = min(self._longest, max(self._first, step * 2))
        return step * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begin anew after a success."""
        self._next = 0.0
