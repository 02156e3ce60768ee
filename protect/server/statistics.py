"""Statistics as protect.v1 has them: the zone's figures under the same names."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.descriptor import Descriptor

from xenpod_proto.channel.v1 import channel_pb2
from xenpod_proto.protect.v1 import protect_pb2 as pb

S = TypeVar("S", channel_pb2.ContainerStats, channel_pb2.ZoneStats, channel_pb2.InterfaceStats)
_PRESSURES = ("cpu_pressure", "memory_pressure", "io_pressure")


def _shared(theirs: Descriptor, ours: Descriptor) -> tuple[str, ...]:
    """Names of the plain fields that both have."""
    plain = {field.name for field in theirs.fields if field.message_type is None}
    return tuple(field.name for field in ours.fields if field.name in plain)


_WORKLOAD = _shared(channel_pb2.ContainerStats.DESCRIPTOR, pb.WorkloadStatsRow.DESCRIPTOR)
_ZONE = _shared(channel_pb2.ZoneStats.DESCRIPTOR, pb.ZoneStatsRow.DESCRIPTOR)
_INTERFACE = _shared(channel_pb2.InterfaceStats.DESCRIPTOR, pb.InterfaceStats.DESCRIPTOR)


def _figures(stats: S, names: tuple[str, ...]) -> dict[str, int]:
    return {name: getattr(stats, name) for name in names}


def _pressures(stats: channel_pb2.ContainerStats | channel_pb2.ZoneStats) -> dict[str, pb.Pressure]:
    """Both messages are the same on the wire."""
    return {
        name: pb.Pressure.FromString(getattr(stats, name).SerializeToString())
        for name in _PRESSURES
        if stats.HasField(name)  # type: ignore[arg-type]  # every name is one of both messages
    }


def workload_stats(zone_id: str, stats: channel_pb2.ContainerStats) -> pb.WorkloadStatsRow:
    return pb.WorkloadStatsRow(zone_id=zone_id, **_figures(stats, _WORKLOAD), **_pressures(stats))  # type: ignore[arg-type]


def zone_stats(zone_id: str, stats: channel_pb2.Stats) -> pb.ZoneStatsRow:
    interfaces = [pb.InterfaceStats(**_figures(one, _INTERFACE)) for one in stats.zone.interfaces]  # type: ignore[arg-type]
    return pb.ZoneStatsRow(
        zone_id=zone_id,
        interfaces=interfaces,
        workloads=[workload_stats(zone_id, one) for one in stats.containers],
        **_figures(stats.zone, _ZONE),  # type: ignore[arg-type]
        **_pressures(stats.zone),  # type: ignore[arg-type]
    )
