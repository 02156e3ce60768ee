"""Makes protect.v1 statistics from values with the same field names.

Messages are filled in place, because a constructor copies its submessages.  A node with many pods has
thousands of messages in each answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from protect.model.statistics import (
    PRESSURES,
    InterfaceStats,
    Pressure,
    WorkloadStats,
    ZoneFigures,
    ZoneStats,
    plain,
)
from protect.model.toolstack import DomainInfo
from xenpod_proto.protect.v1 import protect_pb2 as pb

_WORKLOAD, _ZONE, _INTERFACE = plain(WorkloadStats), plain(ZoneFigures), plain(InterfaceStats)
_PRESSURE = plain(Pressure)


def workload_stats(answers: Iterable[tuple[str, WorkloadStats]]) -> pb.WorkloadStatsResponse:
    """Statistics of workloads, each with the id of its zone."""
    response = pb.WorkloadStatsResponse()
    for zone_id, stats in answers:
        _workload(response.rows.add(zone_id=zone_id), stats)
    return response


def zone_stats(
    answers: Iterable[tuple[str, ZoneStats]], counted: Mapping[str, DomainInfo]
) -> pb.ZoneStatsResponse:
    """Statistics of zones by id; ``counted``: the hypervisor's figures."""
    response = pb.ZoneStatsResponse()
    for zone_id, stats in answers:
        row = response.rows.add(zone_id=zone_id)
        _figures(row, stats.zone, _ZONE)
        _pressures(row, stats.zone)
        if domain := counted.get(zone_id):
            row.host_cpu_usage_ns, row.host_memory_bytes = domain.cpu_time_ns, domain.held_bytes
            row.host_vcpus = domain.vcpus_online
        for interface in stats.zone.interfaces:
            _figures(row.interfaces.add(), interface, _INTERFACE)
        for workload in stats.workloads:
            _workload(row.workloads.add(zone_id=zone_id), workload)
    return response


def _workload(row: pb.WorkloadStatsRow, stats: WorkloadStats) -> None:
    _figures(row, stats, _WORKLOAD)
    _pressures(row, stats)


def _figures(
    target: pb.WorkloadStatsRow | pb.ZoneStatsRow | pb.InterfaceStats | pb.Pressure,
    stats: WorkloadStats | ZoneFigures | InterfaceStats | Pressure,
    names: tuple[str, ...],
) -> None:
    """Set the leading fields, plain figures.  Most are 0, the default of a new message."""
    for name, figure in zip(names, stats, strict=False):
        if figure:
            setattr(target, name, figure)


def _pressures(row: pb.WorkloadStatsRow | pb.ZoneStatsRow, stats: WorkloadStats | ZoneFigures) -> None:
    """Set the measured pressures."""
    for name in PRESSURES:
        measured = getattr(stats, name)
        if measured is not None:
            target = getattr(row, name)
            target.SetInParent()
            _figures(target, measured, _PRESSURE)
