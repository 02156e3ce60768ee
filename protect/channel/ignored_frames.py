"""Bounds the frames that a zone may send at no cost to itself."""

from __future__ import annotations

import time
from collections.abc import Callable

from daemonkit.loop.token_bucket import TokenBucket
from protect.channel.frames import WINDOW, violation

MOST_EARNED = 64 * WINDOW


class IgnoredFrames:
    """Budget for legal frames without effect; more than an honest agent can send are a violation.

    Bytes under way on an abandoned stream are ``earned``, byte by byte.  The sender's credit bounds them; an
    honest agent therefore always has enough, with frames of any size.  All other frames come from a bucket:
    for example, an agent's CREDIT for each of its inputs after a reconnect.
    """

    BURST = 4096.0
    PER_SECOND = 64.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._bucket = TokenBucket(self.BURST, self.PER_SECOND, clock)
        self._earned = 0

    def earn(self, size: int) -> None:
        """Allow ``size`` more bytes for an abandoned stream."""
        self._earned = min(MOST_EARNED, self._earned + size)

    def disconnected(self) -> None:
        """Forget the earned bytes: bytes under way are lost with the connection."""
        self._earned = 0

    def frame(self, what: str, size: int = 1) -> None:
        """Ignore one frame with ``size`` bytes; ProtocolViolation if the budget is spent."""
        size = max(1, size)
        if self._earned >= size:
            self._earned -= size
        elif not self._bucket.take():
            raise violation(f"more than {self.PER_SECOND:.0f} frames a second without effect; last: {what}")
