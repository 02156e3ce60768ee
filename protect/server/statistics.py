"""Makes protect.v1 statistics from values, whose fields have the same names."""

from __future__ import annotations

from typing import Any

from protect.model.statistics import (
    PRESSURES,
    InterfaceStats,
    WorkloadStats,
    ZoneFigures,
    ZoneStats,
    plain,
)
from xenpod_proto.protect.v1 import protect_pb2 as pb

_WORKLOAD, _ZONE, _INTERFACE = plain(WorkloadStats), plain(ZoneFigures), plain(InterfaceStats)


def _figures(stats: WorkloadStats | ZoneFigures | InterfaceStats, names: tuple[str, ...]) -> dict[str, Any]:
    return dict(zip(names, stats, strict=False))


def _pressures(stats: WorkloadStats | ZoneFigures) -> dict[str, Any]:
    """The pressures that were measured."""
    measured = ((name, getattr(stats, name)) for name in PRESSURES)
    return {name: pb.Pressure(**value._asdict()) for name, value in measured if value is not None}


def workload_stats(zone_id: str, stats: WorkloadStats) -> pb.WorkloadStatsRow:
    return pb.WorkloadStatsRow(zone_id=zone_id, **_figures(stats, _WORKLOAD), **_pressures(stats))


def zone_stats(zone_id: str, stats: ZoneStats) -> pb.ZoneStatsRow:
    return pb.ZoneStatsRow(
        zone_id=zone_id,
        interfaces=[pb.InterfaceStats(**_figures(one, _INTERFACE)) for one in stats.zone.interfaces],
        workloads=[workload_stats(zone_id, one) for one in stats.workloads],
        **_figures(stats.zone, _ZONE),
        **_pressures(stats.zone),
    )
