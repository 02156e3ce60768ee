"""Makes ContainerStats from the zones' counters; the CPU rate is from two readings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cri.state.container import Container
from cri.state.pod_records import PodRecords
from cri.state.sandbox import SandboxPhase
from cri.stats.rates import Rates
from cri.stats.values import cpu, io, put_memory, put_number
from cri.zones.client import Zones
from daemonkit.faults import Unreachable
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb


@dataclass(frozen=True, slots=True)
class ContainerStatistics:
    """Statistics of containers.  ``state_dir``: shown as the place of writable layers."""

    records: PodRecords
    zones: Zones
    rates: Rates
    state_dir: Path

    async def stats(self, containers: list[Container]) -> cri.ListContainerStatsResponse:
        """Statistics of live containers, except for silent zones."""
        found = cri.ListContainerStatsResponse()
        wanted = {container.id: container for container in containers if container.live}
        if not wanted:
            return found
        every = len(wanted) == sum(container.live for container in self.records.containers.all())
        rows = await self.zones.workload_stats(() if every else wanted)
        forget_others(self.records, self.rates)
        for row in rows:
            if container := wanted.get(row.id):
                self.fill(found.stats.add(), container, row)
        return found

    async def one(self, container: Container) -> cri.ContainerStats:
        """Statistics of a container; only attributes if it does not run.  Unreachable: its zone is silent."""
        if not container.live:
            ended = cri.ContainerStats()
            attributes(ended.attributes, container)
            return ended
        found = await self.stats([container])
        if not found.stats:
            raise Unreachable("read stats of", container.id, "its zone does not answer")
        return found.stats[0]

    def fill(self, target: cri.ContainerStats, container: Container, row: pb.WorkloadStatsRow) -> None:
        """Put one container's statistics into the message."""
        attributes(target.attributes, container)
        cpu(target.cpu, row, self.rates.rate(row.id, row.timestamp_ns, row.cpu_usage_ns))
        put_memory(target.memory, row)
        if limit := row.memory_limit_bytes:
            put_number(target.memory.available_bytes, max(0, limit - row.memory_working_set_bytes))
        layer = target.writable_layer
        layer.timestamp = row.timestamp_ns
        layer.fs_id.mountpoint = str(self.state_dir)
        put_number(layer.used_bytes, row.writable_layer_bytes)
        put_number(layer.inodes_used, row.writable_layer_inodes)
        _swap(target.swap, row)
        io(target, row)


def forget_others(records: PodRecords, rates: Rates) -> None:
    """Forget the rates of stopped containers."""
    live = [container.id for container in records.containers.all() if container.live]
    rates.keep(
        [*live, *(sandbox.id for sandbox in records.sandboxes.all() if sandbox.phase is SandboxPhase.READY)]
    )


def attributes(target: cri.ContainerAttributes, container: Container) -> None:
    """Fill in the identity of the container."""
    config = container.config
    target.id = container.id
    target.metadata.CopyFrom(config.metadata)
    target.labels.MergeFrom(config.labels)
    target.annotations.MergeFrom(config.annotations)


def _swap(target: cri.SwapUsage, row: pb.WorkloadStatsRow) -> None:
    """Put statistics of swap; the available swap is known only if memory and swap have a common limit."""
    target.timestamp = row.timestamp_ns
    put_number(target.swap_usage_bytes, row.swap_usage_bytes)
    if row.memory_swap_limit_bytes and row.memory_limit_bytes:
        limit = max(0, row.memory_swap_limit_bytes - row.memory_limit_bytes)
        put_number(target.swap_available_bytes, max(0, limit - row.swap_usage_bytes))
