"""Retry policy for one registry host: number of attempts, and the delay between them."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TypeVar

from images.bounds.cancel import CancelToken
from images.image_errors import Busy, Interrupted, Stalled
from images.image_settings import ImageSettings

T = TypeVar("T")
PROGRESS_BYTES = 64 << 10
"""Bytes of progress that reset a download's attempts."""


class RetryPolicy:
    """Counts the attempts of one request at one host; progress resets the count.

    last: no other host is left to ask, hence a busy host is asked again.
    """

    def __init__(self, settings: ImageSettings, last: bool = True) -> None:
        self._settings = settings
        self._last = last
        self._tries = 1
        self._received = 0

    def received(self, size: int) -> None:
        """Count received bytes."""
        self._received += size

    def backoff(self, fault: Interrupted | Stalled) -> float:
        """Seconds to wait before the next attempt; raises the fault to give up.

        A stall without progress is final: the request has already used its whole deadline.  A busy host's
        answer is final too, unless no other host is left.
        """
        if isinstance(fault, Busy) and not self._last:
            raise fault
        if self._received >= PROGRESS_BYTES:
            self._tries = 1
        elif isinstance(fault, Stalled) or self._tries >= self._settings.tries_per_host:
            raise fault
        self._received = 0
        delay = self._delay(fault)
        self._tries += 1
        return delay

    def _delay(self, fault: Interrupted | Stalled) -> float:
        """Exponential backoff with jitter: callers that failed together return at different times."""
        longest = self._settings.retry_most_seconds
        after = fault.after if isinstance(fault, Interrupted) else None
        if after is not None and after > longest:
            cause = f"{fault.cause}; it wants to be asked again in {after:.0f} s, longer than {longest:.0f} s"
            raise Interrupted(fault.operation, fault.subject, cause, fault.hint, after) from fault
        delay: float = min(longest, self._settings.retry_seconds * 2 ** (self._tries - 1)) * random.uniform(
            0.5, 1
        )
        # Added to the host's Retry-After: otherwise all refused callers would return at the same moment.
        return delay if after is None else min(longest, after + delay)


def with_retries(work: Callable[[], T], policy: RetryPolicy, token: CancelToken) -> T:
    """The result of the first attempt that is neither interrupted nor stalled; blocks."""
    while True:
        try:
            return work()
        except (Interrupted, Stalled) as fault:
            token.sleep(policy.backoff(fault))


def retry_after(untrusted: str, now: float) -> float | None:
    """Seconds from a Retry-After header (RFC 9110, 10.2.3), a number or a date; None for anything else.

    now: seconds since the epoch.
    """
    text = untrusted.strip()
    if text.isascii() and text.isdigit():
        return float(text[:12])
    try:
        moment = parsedate_to_datetime(text)
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return max(0.0, aware.timestamp() - now)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
