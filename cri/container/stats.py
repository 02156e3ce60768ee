"""Container statistics: counters from the zones, a CPU rate from two of our own readings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cri.container.record import Container
from cri.node import Node
from daemonkit.faults import Unreachable
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

_SHORTEST = 10**8


@dataclass(frozen=True, slots=True)
class _Reading:
    timestamp_ns: int
    cpu_ns: int
    rate: int


class Rates:
    """The last reading of each container, for nanoseconds of CPU time per second."""

    def __init__(self) -> None:
        self._last: dict[str, _Reading] = {}

    def rate(self, row: pb.WorkloadStatsRow) -> int:
        """Since the reading before; readings closer than 0.1 s apart repeat the rate."""
        last = self._last.get(row.id)
        passed = row.timestamp_ns - last.timestamp_ns if last else 0
        if last and passed < _SHORTEST:
            return last.rate
        used = max(0, row.cpu_usage_ns - last.cpu_ns) if last else 0
        rate = used * 10**9 // passed if passed > 0 else 0
        self._last[row.id] = _Reading(row.timestamp_ns, row.cpu_usage_ns, rate)
        return rate

    def keep(self, ids: Iterable[str]) -> None:
        """Forget all others."""
        for gone in self._last.keys() - set(ids):
            del self._last[gone]


async def stats(node: Node, rates: Rates, containers: list[Container]) -> list[cri.ContainerStats]:
    """Of those that are live; a silent zone's are left out."""
    wanted = {container.id: container for container in containers if container.live}
    if not wanted:
        return []
    rows = await node.zones.workload_stats(wanted)
    rates.keep(container.id for container in node.containers.all() if container.live)
    return [_stats(wanted[row.id], row, rates.rate(row), node) for row in rows if row.id in wanted]


async def one(node: Node, rates: Rates, container: Container) -> cri.ContainerStats:
    """Of one; with its attributes alone when it does not run, Unreachable when its zone is silent."""
    if not container.live:
        return cri.ContainerStats(attributes=attributes(container))
    found = await stats(node, rates, [container])
    if not found:
        raise Unreachable("read stats of", container.id, "its zone does not answer")
    return found[0]


def attributes(container: Container) -> cri.ContainerAttributes:
    """Whose statistics they are."""
    return cri.ContainerAttributes(
        id=container.id,
        metadata=container.config.metadata,
        labels=container.config.labels,
        annotations=container.config.annotations,
    )


def _stats(container: Container, row: pb.WorkloadStatsRow, rate: int, node: Node) -> cri.ContainerStats:
    when = row.timestamp_ns
    return cri.ContainerStats(
        attributes=attributes(container),
        cpu=cri.CpuUsage(
            timestamp=when,
            usage_core_nano_seconds=_value(row.cpu_usage_ns),
            usage_nano_cores=_value(rate),
        ),
        memory=_memory(row),
        writable_layer=cri.FilesystemUsage(
            timestamp=when,
            fs_id=cri.FilesystemIdentifier(mountpoint=str(node.config.state_dir)),
            used_bytes=_value(row.writable_layer_bytes),
            inodes_used=_value(row.writable_layer_inodes),
        ),
        swap=cri.SwapUsage(timestamp=when, swap_usage_bytes=_value(row.swap_usage_bytes)),
    )


def _memory(row: pb.WorkloadStatsRow) -> cri.MemoryUsage:
    limit = row.memory_limit_bytes
    free = _value(max(0, limit - row.memory_working_set_bytes)) if limit else None
    return cri.MemoryUsage(
        timestamp=row.timestamp_ns,
        working_set_bytes=_value(row.memory_working_set_bytes),
        available_bytes=free,
        usage_bytes=_value(row.memory_usage_bytes),
        rss_bytes=_value(row.memory_rss_bytes),
        page_faults=_value(row.page_faults),
        major_page_faults=_value(row.major_page_faults),
    )


def _value(number: int) -> cri.UInt64Value:
    return cri.UInt64Value(value=number)
