"""Token buckets."""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """A token bucket, full at first."""

    def __init__(self, burst: float, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_second = per_second
        self._burst = burst
        self._left = burst
        self._clock = clock
        self._at = clock()

    def take(self) -> bool:
        """Take a token; False if none is left."""
        self._fill()
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def borrow(self) -> float:
        """Take a token, a future one if necessary; returns the seconds until it exists."""
        self._fill()
        self._left -= 1
        return max(0.0, -self._left / self.per_second)

    def charge(self, tokens: float, largest_debt: float) -> None:
        """Take tokens, future tokens too, but leave no larger debt."""
        self._fill()
        self._left = max(self._left - tokens, -largest_debt)

    def left(self) -> float:
        """The tokens left; negative in debt."""
        self._fill()
        return self._left

    def _fill(self) -> None:
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self.per_second)
        self._at = now
