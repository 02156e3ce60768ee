"""Makes ContainerStats from the zones' counters; the CPU rate is from two readings."""

from __future__ import annotations

from cri.runtime import Runtime
from cri.state.container import Container
from cri.state.sandbox import SandboxPhase
from cri.stats.rates import Rates
from cri.stats.values import cpu_psi, io, known, memory_psi, value
from daemonkit.faults import Unreachable
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb


async def stats(runtime: Runtime, rates: Rates, containers: list[Container]) -> list[cri.ContainerStats]:
    """Statistics of live containers; those of a silent zone are left out."""
    wanted = {container.id: container for container in containers if container.live}
    if not wanted:
        return []
    every = len(wanted) == sum(container.live for container in runtime.containers.all())
    rows = await runtime.zones.workload_stats(() if every else wanted)
    forget_others(runtime, rates)
    return [message(wanted[row.id], row, rates, runtime) for row in rows if row.id in wanted]


async def one(runtime: Runtime, rates: Rates, container: Container) -> cri.ContainerStats:
    """Statistics of a container; only attributes if it does not run.  Unreachable: its zone is silent."""
    if not container.live:
        return cri.ContainerStats(attributes=attributes(container))
    found = await stats(runtime, rates, [container])
    if not found:
        raise Unreachable("read stats of", container.id, "its zone does not answer")
    return found[0]


def forget_others(runtime: Runtime, rates: Rates) -> None:
    """Forget the rates of containers that do not run any more."""
    live = [container.id for container in runtime.containers.all() if container.live]
    rates.keep(
        [*live, *(sandbox.id for sandbox in runtime.sandboxes.all() if sandbox.phase is SandboxPhase.READY)]
    )


def attributes(container: Container) -> cri.ContainerAttributes:
    """The attributes of the container whose statistics these are."""
    return cri.ContainerAttributes(
        id=container.id,
        metadata=container.config.metadata,
        labels=container.config.labels,
        annotations=container.config.annotations,
    )


def message(
    container: Container, row: pb.WorkloadStatsRow, rates: Rates, runtime: Runtime
) -> cri.ContainerStats:
    """The message of one container's statistics."""
    when = row.timestamp_ns
    return cri.ContainerStats(
        attributes=attributes(container),
        cpu=cri.CpuUsage(
            timestamp=when,
            usage_core_nano_seconds=value(row.cpu_usage_ns),
            usage_nano_cores=known(rates.rate(row.id, when, row.cpu_usage_ns)),
            psi=cpu_psi(row),
        ),
        memory=_memory(row),
        writable_layer=cri.FilesystemUsage(
            timestamp=when,
            fs_id=cri.FilesystemIdentifier(mountpoint=str(runtime.config.state_dir)),
            used_bytes=value(row.writable_layer_bytes),
            inodes_used=value(row.writable_layer_inodes),
        ),
        swap=_swap(row),
        io=io(row),
    )


def _memory(row: pb.WorkloadStatsRow) -> cri.MemoryUsage:
    limit = row.memory_limit_bytes
    return cri.MemoryUsage(
        timestamp=row.timestamp_ns,
        working_set_bytes=value(row.memory_working_set_bytes),
        available_bytes=value(max(0, limit - row.memory_working_set_bytes)) if limit else None,
        usage_bytes=value(row.memory_usage_bytes),
        rss_bytes=value(row.memory_rss_bytes),
        page_faults=value(row.page_faults),
        major_page_faults=value(row.major_page_faults),
        psi=memory_psi(row),
    )


def _swap(row: pb.WorkloadStatsRow) -> cri.SwapUsage:
    """Statistics of swap; what is available is known only if memory and swap have a common limit."""
    limit = max(0, row.memory_swap_limit_bytes - row.memory_limit_bytes)
    known = row.memory_swap_limit_bytes and row.memory_limit_bytes
    return cri.SwapUsage(
        timestamp=row.timestamp_ns,
        swap_usage_bytes=value(row.swap_usage_bytes),
        swap_available_bytes=value(max(0, limit - row.swap_usage_bytes)) if known else None,
    )
