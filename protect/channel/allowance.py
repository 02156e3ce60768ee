"""Bounds what a zone may send at no cost to itself."""

from __future__ import annotations

import time
from collections.abc import Callable

from daemonkit.loop.allowance import Allowance
from protect.channel.frames import WINDOW, violation

MOST_EARNED = 64 * WINDOW


class IgnoredFrames:
    """Frames that are legal and have no effect; more than an honest agent can send are a violation.

    What was under way when a stream was given up is ``earned``, byte by byte: the sender's credit bounds it,
    so no honest agent is ever short of it, however small its frames are.  What else there is comes from a
    bucket: an agent's CREDIT for each of its inputs after a reconnect, for example.
    """

    BURST = 4096.0
    PER_SECOND = 64.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._bucket = Allowance(self.BURST, self.PER_SECOND, clock)
        self._earned = 0

    def earn(self, size: int) -> None:
        """Allow this many more bytes for a stream that has been given up."""
        self._earned = min(MOST_EARNED, self._earned + size)

    def disconnected(self) -> None:
        """Forget what was earned: what was under way is lost with the connection."""
        self._earned = 0

    def frame(self, what: str, size: int = 1) -> None:
        """Ignore one frame with ``size`` bytes; ProtocolViolation if it is one too many."""
        size = max(1, size)
        if self._earned >= size:
            self._earned -= size
        elif not self._bucket.take():
            raise violation(f"more than {self.PER_SECOND:.0f} frames a second without effect; last: {what}")
