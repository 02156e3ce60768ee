"""Whether calls of a daemon's callers are under way: less urgent work can then make room."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

LATELY_SECONDS = 0.1
"""Seconds for which a new stream counts: its caller waits for the first bytes."""
AFTER_SECONDS = 0.1
"""Seconds for which a call counts after its end: a pod's start is many calls in a row."""
LONGEST_SECONDS = 10.0
"""Most seconds that a call counts: waiting for a container's end needs no room."""


class InFlight:
    """Counts the calls of a server that are under way."""

    def __init__(
        self, lately: float = LATELY_SECONDS, after: float = AFTER_SECONDS, longest: float = LONGEST_SECONDS
    ) -> None:
        self._lately, self._after, self._longest = lately, after, longest
        self._begun: dict[object, float] = {}
        """When each call began, the oldest first."""
        self._until = 0.0

    def any(self) -> bool:
        """Whether any call is under way, or has just ended."""
        now = time.monotonic()
        return now < self._until or now - next(reversed(self._begun.values()), -self._longest) < self._longest

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call with one reply; counts until its end, and a little longer."""
        key = object()
        self._begun[key] = time.monotonic()
        try:
            yield
        finally:
            del self._begun[key]
            self._count(self._after)

    def stream(self) -> None:
        """A call with a stream begins.  Its length does not matter."""
        self._count(self._lately)

    def _count(self, seconds: float) -> None:
        self._until = max(self._until, time.monotonic() + seconds)
