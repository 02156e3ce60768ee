"""Whether calls of a daemon's callers are under way, so that work for which nobody waits can make room."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

LATELY = 0.1
"""Seconds that the beginning of a stream counts: it waits for its first bytes."""
AFTER = 0.1
"""Seconds that a call counts beyond its end: a pod's start is many calls, one after the other."""
LONGEST = 10.0
"""Seconds that one call counts at most: one that waits for the end of a container needs no room meanwhile."""


class Underway:
    """Counts the calls of one server that are under way."""

    def __init__(self, lately: float = LATELY, after: float = AFTER, longest: float = LONGEST) -> None:
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
        """A call with one reply, which counts until it ends, and a little longer."""
        key = object()
        self._begun[key] = time.monotonic()
        try:
            yield
        finally:
            del self._begun[key]
            self._count(self._after)

    def stream(self) -> None:
        """A call with a stream begins.  How long it goes on does not matter."""
        self._count(self._lately)

    def _count(self, seconds: float) -> None:
        self._until = max(self._until, time.monotonic() + seconds)
