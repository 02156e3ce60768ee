"""Changes of zones and workloads, as watchers get them."""

from __future__ import annotations

from dataclasses import dataclass

from protect.model.workload import Workload
from protect.model.zone import Zone


@dataclass(frozen=True, slots=True)
class ZoneSeen:
    """A zone is there, or changed."""

    zone: Zone
    connected: bool


@dataclass(frozen=True, slots=True)
class ZoneGone:
    zone_id: str


@dataclass(frozen=True, slots=True)
class WorkloadSeen:
    """A workload is there, or changed."""

    workload: Workload


@dataclass(frozen=True, slots=True)
class WorkloadGone:
    workload_id: str


@dataclass(frozen=True, slots=True)
class Synced:
    """The snapshot is complete; changes follow."""


Change = ZoneSeen | ZoneGone | WorkloadSeen | WorkloadGone
Event = Change | Synced
