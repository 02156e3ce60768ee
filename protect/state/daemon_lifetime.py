"""Lifetime of protectd: background tasks, the end of the daemon, admission of zones."""

from __future__ import annotations

from dataclasses import dataclass, field

from daemonkit.faults import Unreachable
from daemonkit.tasks import Background
from protect.model.lifetime import End


def _end_of_daemon() -> End:
    return End(Unreachable)


@dataclass(frozen=True, slots=True)
class DaemonLifetime:
    """Background tasks, and the end of the daemon.  Zones go on afterwards."""

    tasks: Background = field(default_factory=Background)
    stopping: End = field(default_factory=_end_of_daemon)


@dataclass(slots=True)
class AdmissionGate:
    """Whether zones are admitted."""

    closed: str = ""
    """Why no more zones are admitted; "": zones are admitted."""
