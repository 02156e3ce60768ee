"""How long one host is borne with before the next one is asked."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TypeVar

from cri.images.cancel import Cancel
from cri.images.errors import Interrupted, Stalled
from cri.images.settings import ImageSettings
from daemonkit.faults import Fault

T = TypeVar("T")
# So many bytes are worth another set of tries.
PROGRESS = 64 << 10


class Patience:
    """The tries that one thing has at one host; those it had are forgotten once it moves on."""

    def __init__(self, settings: ImageSettings, cancel: Cancel) -> None:
        self._settings = settings
        self._cancel = cancel
        self._tried = 1
        self._moved = 0

    def moved(self, size: int) -> None:
        """So many bytes have come."""
        self._moved += size

    def again(self, fault: Interrupted | Stalled) -> None:
        """Waits for a moment, before another try; raises the fault when there is to be none."""
        if self._moved >= PROGRESS:
            self._tried = 1
        elif isinstance(fault, Stalled) or self._tried >= self._settings.tries_per_host:
            raise fault
        self._moved = 0
        delay = self._delay(fault)
        self._tried += 1
        wake = threading.Event()
        with self._cancel.interrupting(wake.set):
            wake.wait(delay)
        self._cancel.check()

    def _delay(self, fault: Fault) -> float:
        """Twice as long each time, and never the same: callers that failed together come back apart."""
        most = self._settings.retry_most_seconds
        after = fault.after if isinstance(fault, Interrupted) else None
        if after is not None and after > most:
            cause = f"{fault.cause}; it wants to be asked again in {after:.0f} s, longer than {most:.0f} s"
            raise Interrupted(fault.operation, fault.subject, cause, fault.hint, after) from fault
        delay: float = min(most, self._settings.retry_seconds * 2 ** (self._tried - 1)) * random.uniform(
            0.5, 1
        )
        # Spread beyond what it asked for: all that it sent away would come back at one moment.
        return delay if after is None else min(most, after + delay)


def with_patience(work: Callable[[], T], settings: ImageSettings, cancel: Cancel) -> T:
    """What the work gives at its first try that is neither interrupted nor stalls."""
    patience = Patience(settings, cancel)
    while True:
        try:
            return work()
        except (Interrupted, Stalled) as fault:
            patience.again(fault)


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
