"""Steps that another program reports: how long each took, and how long ago, by a clock that is not trusted.

They become child spans of the call.  The span of the call is measured here, and the reported ones are clamped
to it.  They are used for nothing else, so a false report distorts only the trace of its own call.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from daemonkit.observe import traces


@dataclass(frozen=True, slots=True)
class ReportedStep:
    """It began so many ns before the message that tells it, and took so long."""

    name: str
    ago_ns: int
    duration_ns: int


@dataclass(frozen=True, slots=True)
class ReportedSteps:
    """What one message tells; ``came_ns``: our own clock when it came, ns since the epoch."""

    came_ns: int = 0
    steps: tuple[ReportedStep, ...] = ()


def show(reported: ReportedSteps) -> None:
    """Add the steps to the current span, which says whose they are, if it is recorded."""
    begun = traces.recorded_since()
    if begun is None or not reported.steps:
        return
    now = time.time_ns()
    for one in reported.steps:
        start = _within(begun, reported.came_ns - one.ago_ns, now)
        end = _within(start, reported.came_ns - one.ago_ns + one.duration_ns, now)
        traces.add(one.name, start, end, {"untrusted": True, "reported_us": one.duration_ns // 1000})


def _within(low: int, value: int, high: int) -> int:
    return max(low, min(value, high))
