"""Makes PodSandboxStats from the figures of the whole zone, and of its containers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cri.state.pod_records import PodRecords
from cri.state.records import Records, has_id, has_labels
from cri.state.sandbox import Sandbox, SandboxPhase
from cri.stats.containers import ContainerStatistics, forget_others
from cri.stats.rates import Rates
from cri.stats.values import cpu, io, put_memory, put_number
from cri.zones.client import Zones
from daemonkit.faults import Refused, Unreachable
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb


@dataclass(frozen=True, slots=True)
class PodStatistics:
    """Statistics of pods."""

    records: PodRecords
    zones: Zones
    rates: Rates
    containers: ContainerStatistics

    def selected(self, asked: cri.PodSandboxStatsFilter) -> list[Sandbox]:
        """The running pods selected by the filter."""
        return [
            sandbox
            for sandbox in self.records.sandboxes.visible()
            if sandbox.phase is SandboxPhase.READY
            and has_id(sandbox.id, asked.id)
            and has_labels(sandbox.labels, asked.label_selector)
        ]

    async def stats(self, sandboxes: list[Sandbox]) -> cri.ListPodSandboxStatsResponse:
        """Statistics of running pods, except for silent zones."""
        rows = await zone_rows(self.records.sandboxes, self.zones, sandboxes)
        forget_others(self.records, self.rates)
        found = cri.ListPodSandboxStatsResponse()
        for sandbox in sandboxes:
            if row := rows.get(sandbox.id):
                self._fill(found.stats.add(), sandbox, row)
        return found

    async def one(self, sandbox: Sandbox) -> cri.PodSandboxStats:
        """Statistics of one pod.  Refused: the pod does not run; Unreachable: its zone is silent."""
        if sandbox.phase is not SandboxPhase.READY:
            raise Refused("read stats of pod", sandbox.id, f"it is {sandbox.phase.value}")
        found = await self.stats([sandbox])
        if not found.stats:
            raise Unreachable("read stats of pod", sandbox.id, "its zone does not answer")
        return found.stats[0]

    def _fill(self, target: cri.PodSandboxStats, sandbox: Sandbox, row: pb.ZoneStatsRow) -> None:
        target.attributes.id = sandbox.id
        target.attributes.metadata.CopyFrom(sandbox.config.metadata)
        target.attributes.labels.MergeFrom(sandbox.config.labels)
        target.attributes.annotations.MergeFrom(sandbox.config.annotations)
        linux = target.linux
        cpu(linux.cpu, row, self.rates.rate(sandbox.id, row.timestamp_ns, row.cpu_usage_ns))
        put_memory(linux.memory, row)
        put_number(linux.memory.available_bytes, row.memory_available_bytes)
        io(linux, row)
        _network(linux, sandbox, row)
        linux.process.timestamp = row.timestamp_ns
        put_number(linux.process.process_count, sum(one.pids_current for one in row.workloads))
        known = self.records.containers
        for one in row.workloads:
            if known.has(one.id) and (container := known.get(one.id)).live:
                self.containers.fill(linux.containers.add(), container, one)


async def zone_rows(
    records: Records[Sandbox], zones: Zones, wanted: Sequence[Sandbox], *, details: bool = False
) -> dict[str, pb.ZoneStatsRow]:
    """protectd's statistics by sandbox id."""
    if not wanted:
        return {}
    every = len(wanted) == sum(sandbox.phase is SandboxPhase.READY for sandbox in records.all())
    ids = () if every else [sandbox.id for sandbox in wanted]
    return {row.zone_id: row for row in await zones.zone_stats(ids, details=details)}


def _network(linux: cri.LinuxPodSandboxStats, sandbox: Sandbox, row: pb.ZoneStatsRow) -> None:
    """Put network statistics: the default interface, CNI's, and all others.

    Without a default interface, put nothing: the kubelet uses the default unchecked (addCRIPodNetworkStats),
    and would crash.
    """
    usage = {one.name: one for one in row.interfaces}
    default = usage.pop(sandbox.attachment.interface, None)
    if default is None:
        return
    linux.network.timestamp = row.timestamp_ns
    _interface(linux.network.default_interface, default)
    for one in usage.values():
        _interface(linux.network.interfaces.add(), one)


def _interface(target: cri.NetworkInterfaceUsage, one: pb.InterfaceStats) -> None:
    target.name = one.name
    put_number(target.rx_bytes, one.rx_bytes)
    put_number(target.rx_errors, one.rx_errors)
    put_number(target.tx_bytes, one.tx_bytes)
    put_number(target.tx_errors, one.tx_errors)
