"""An agent's reports of its own steps: names from the contract, bounded numbers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from daemonkit.observe import reported, traces
from daemonkit.observe.reported import ReportedStep, ReportedSteps
from xenpod_proto.channel.v1 import channel_pb2

MOST_STEPS = 8
"""Maximum number of steps in a message."""
LONGEST_US = 3600 * 10**6
"""Longer than any wait."""

_NAMES: Mapping[int, str] = {
    value: f"guest.{name.removeprefix('STEP_').lower()}" for name, value in channel_pb2.Step.items() if value
}


def read_steps(untrusted: Sequence[channel_pb2.StepTime]) -> ReportedSteps:
    """The known steps of a message that has just come."""
    return ReportedSteps(
        time.time_ns(),
        tuple(
            ReportedStep(
                _NAMES[one.step],
                min(one.ago_us, LONGEST_US) * 1000,
                min(one.duration_us, LONGEST_US) * 1000,
            )
            for one in untrusted[:MOST_STEPS]
            if one.step in _NAMES
        ),
    )


def show(untrusted: Sequence[channel_pb2.StepTime]) -> None:
    """Add the steps of a reply that has just come to the current span."""
    if untrusted and traces.on():
        reported.show_steps(read_steps(untrusted))
