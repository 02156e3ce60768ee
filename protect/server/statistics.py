"""Statistics as protect.v1 has them: the values' fields under the same names."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from protect.model.statistics import InterfaceStats, Pressure, WorkloadStats, ZoneFigures, ZoneStats
from xenpod_proto.protect.v1 import protect_pb2 as pb

_PRESSURES = ("cpu_pressure", "memory_pressure", "io_pressure")


def _plain(value: type[Any]) -> tuple[str, ...]:
    """Names of the fields that are numbers or texts."""
    return tuple(field.name for field in fields(value) if field.name not in (*_PRESSURES, "interfaces"))


_WORKLOAD, _ZONE, _INTERFACE = _plain(WorkloadStats), _plain(ZoneFigures), _plain(InterfaceStats)
_PRESSURE = _plain(Pressure)


def _figures(stats: WorkloadStats | ZoneFigures | InterfaceStats, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(stats, name) for name in names}


def _pressures(stats: WorkloadStats | ZoneFigures) -> dict[str, Any]:
    """The pressures that were measured."""
    measured = {name: getattr(stats, name) for name in _PRESSURES}
    return {
        name: pb.Pressure(**{key: getattr(value, key) for key in _PRESSURE})
        for name, value in measured.items()
        if value is not None
    }


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
