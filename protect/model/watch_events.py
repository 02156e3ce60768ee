"""Events about zones and workloads for watchers."""

from __future__ import annotations

from dataclasses import dataclass

from protect.model.capacity.host_resources import HostNotice
from protect.model.workload import Workload
from protect.model.zone import Zone


@dataclass(frozen=True, slots=True)
class ZoneSeen:
    """A zone exists, or has changed."""

    zone: Zone
    connected: bool
    paused: bool = False


@dataclass(frozen=True, slots=True)
class ZoneGone:
    zone_id: str


@dataclass(frozen=True, slots=True)
class WorkloadSeen:
    """A workload exists, or has changed."""

    workload: Workload


@dataclass(frozen=True, slots=True)
class WorkloadGone:
    workload_id: str


@dataclass(frozen=True, slots=True)
class NoticeSeen:
    """A setting of the host is wrong."""

    notice: HostNotice


@dataclass(frozen=True, slots=True)
class NoticeGone:
    """A setting of the host is right again."""

    setting: str


@dataclass(frozen=True, slots=True)
class Synced:
    """The snapshot is complete; changes follow."""


Change = ZoneSeen | ZoneGone | WorkloadSeen | WorkloadGone | NoticeSeen | NoticeGone
Event = Change | Synced
