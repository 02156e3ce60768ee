"""Makes PodSandboxStats from the figures of the whole zone, and of its containers."""

from __future__ import annotations

from cri.runtime import Runtime
from cri.state.records import has_id, has_labels
from cri.state.sandbox import Sandbox, SandboxPhase
from cri.stats.containers import forget_others, message
from cri.stats.rates import Rates
from cri.stats.values import cpu_psi, io, known, memory_psi, value
from daemonkit.faults import Refused, Unreachable
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb


def selected(runtime: Runtime, asked: cri.PodSandboxStatsFilter) -> list[Sandbox]:
    """The running pods that the filter selects."""
    return [
        sandbox
        for sandbox in runtime.sandboxes.visible()
        if sandbox.phase is SandboxPhase.READY
        and has_id(sandbox.id, asked.id)
        and has_labels(sandbox.labels, asked.label_selector)
    ]


async def stats(runtime: Runtime, rates: Rates, sandboxes: list[Sandbox]) -> list[cri.PodSandboxStats]:
    """Statistics of running pods; one whose zone is silent is left out."""
    rows = await zone_rows(runtime, sandboxes)
    forget_others(runtime, rates)
    return [
        _message(runtime, rates, sandbox, rows[sandbox.id]) for sandbox in sandboxes if sandbox.id in rows
    ]


async def one(runtime: Runtime, rates: Rates, sandbox: Sandbox) -> cri.PodSandboxStats:
    """Statistics of one pod.  Refused: it does not run; Unreachable: its zone is silent."""
    if sandbox.phase is not SandboxPhase.READY:
        raise Refused("read stats of pod", sandbox.id, f"it is {sandbox.phase.value}")
    found = await stats(runtime, rates, [sandbox])
    if not found:
        raise Unreachable("read stats of pod", sandbox.id, "its zone does not answer")
    return found[0]


async def zone_rows(
    runtime: Runtime, sandboxes: list[Sandbox], *, details: bool = False
) -> dict[str, pb.ZoneStatsRow]:
    """protectd's statistics by sandbox id."""
    if not sandboxes:
        return {}
    every = len(sandboxes) == sum(sandbox.phase is SandboxPhase.READY for sandbox in runtime.sandboxes.all())
    ids = () if every else [sandbox.id for sandbox in sandboxes]
    return {row.zone_id: row for row in await runtime.zones.zone_stats(ids, details=details)}


def _message(runtime: Runtime, rates: Rates, sandbox: Sandbox, row: pb.ZoneStatsRow) -> cri.PodSandboxStats:
    when = row.timestamp_ns
    live = [(runtime.containers.get(one.id), one) for one in row.workloads if runtime.containers.has(one.id)]
    return cri.PodSandboxStats(
        attributes=cri.PodSandboxAttributes(
            id=sandbox.id,
            metadata=sandbox.config.metadata,
            labels=sandbox.config.labels,
            annotations=sandbox.config.annotations,
        ),
        linux=cri.LinuxPodSandboxStats(
            cpu=cri.CpuUsage(
                timestamp=when,
                usage_core_nano_seconds=value(row.cpu_usage_ns),
                usage_nano_cores=known(rates.rate(sandbox.id, when, row.cpu_usage_ns)),
                psi=cpu_psi(row),
            ),
            memory=_memory(row),
            network=_network(sandbox, row),
            process=cri.ProcessUsage(
                timestamp=when, process_count=value(sum(one.pids_current for one in row.workloads))
            ),
            containers=[message(container, one, rates, runtime) for container, one in live if container.live],
            io=io(row),
        ),
    )


def _memory(row: pb.ZoneStatsRow) -> cri.MemoryUsage:
    return cri.MemoryUsage(
        timestamp=row.timestamp_ns,
        working_set_bytes=value(row.memory_working_set_bytes),
        available_bytes=value(row.memory_available_bytes),
        usage_bytes=value(row.memory_usage_bytes),
        rss_bytes=value(row.memory_rss_bytes),
        page_faults=value(row.page_faults),
        major_page_faults=value(row.major_page_faults),
        psi=memory_psi(row),
    )


def _network(sandbox: Sandbox, row: pb.ZoneStatsRow) -> cri.NetworkUsage | None:
    """Network statistics: the default interface, which is CNI's, and the others.

    None without a default one: the kubelet uses that unseen (addCRIPodNetworkStats), and would crash.
    """
    usage = {one.name: _interface(one) for one in row.interfaces}
    default = usage.pop(sandbox.attachment.interface, None)
    if default is None:
        return None
    return cri.NetworkUsage(
        timestamp=row.timestamp_ns, default_interface=default, interfaces=list(usage.values())
    )


def _interface(one: pb.InterfaceStats) -> cri.NetworkInterfaceUsage:
    return cri.NetworkInterfaceUsage(
        name=one.name,
        rx_bytes=value(one.rx_bytes),
        rx_errors=value(one.rx_errors),
        tx_bytes=value(one.tx_bytes),
        tx_errors=value(one.tx_errors),
    )
