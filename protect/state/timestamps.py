"""Times of records."""

from __future__ import annotations

import time


def now_ns() -> int:
    """The host's clock, ns since the epoch."""
    return time.time_ns()
