"""Steps reported by another program: duration and age of each, by an untrusted clock.

The steps become child spans of the call.  This daemon measures the span of the call, and clamps reported
steps to it.  The steps have no other use: a false report distorts only the trace of its own call.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from daemonkit.observe import traces


@dataclass(frozen=True, slots=True)
class ReportedStep:
    """A step: start, in ns before its message, and duration."""

    name: str
    ago_ns: int
    duration_ns: int


@dataclass(frozen=True, slots=True)
class ReportedSteps:
    """The steps in one message; ``came_ns``: this daemon's clock at arrival, ns since the epoch."""

    came_ns: int = 0
    steps: tuple[ReportedStep, ...] = ()


def show_steps(reported: ReportedSteps) -> None:
    """Add the steps to the current span, if recorded; they are marked as untrusted."""
    begun = traces.recorded_since()
    if begun is None or not reported.steps:
        return
    now = time.time_ns()
    for one in reported.steps:
        start = _within(begun, reported.came_ns - one.ago_ns, now)
        end = _within(start, reported.came_ns - one.ago_ns + one.duration_ns, now)
        traces.add_span(one.name, start, end, {"untrusted": True, "reported_us": one.duration_ns // 1000})


def _within(low: int, value: int, high: int) -> int:
    return max(low, min(value, high))
