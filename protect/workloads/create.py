"""CreateWorkload: record, attach the disks, have the agent prepare the container, join its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from daemonkit.checkpoints import checkpoint, declare
from daemonkit.faults import Exhausted, Exists, Refused
from protect.model.errors import ProtocolViolation
from protect.model.ports import AgentLink
from protect.model.volume import Source, Volume, close
from protect.model.workload import FileId, Streams, Workload, WorkloadState
from protect.state.node import Node, WorkloadRuntime, ZoneRuntime, now_ns
from protect.state.store import Intent
from protect.tasks import side_by_side, whole
from protect.toolstack.port import DiskSpec
from protect.workloads import disks
from protect.workloads.delete import undo_create
from protect.workloads.outputs import Outputs
from protect.workloads.volumes import held
from xenpod_proto.channel.v1 import channel_pb2

INTENT = Intent("workload.create")

declare(
    "workload-create.recorded",
    "workload-create.disk-attached",
    "workload-create.disks-attached",
    "workload-create.volumes-attached",
    "workload-create.log-open",
    "workload-create.prepared",
    "workload-create.created",
)


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """A workload to create, validated."""

    id: str
    zone_id: str
    oci_config: bytes
    stack: disks.Stack
    tty: bool = False
    stdin: bool = False
    stdin_once: bool = False
    log_path: str = ""
    files: Sequence[channel_pb2.File] = ()
    volumes: Sequence[Volume] = ()
    image_volumes: Sequence[disks.ImageVolume] = ()
    memory_volumes: Sequence[channel_pb2.MemoryVolume] = ()

    @property
    def stacks(self) -> tuple[disks.Stack, ...]:
        """Of all its images, the root's first."""
        return (self.stack, *(volume.stack for volume in self.image_volumes))


@dataclass(frozen=True, slots=True)
class _Work:
    """What is to be created, and from what."""

    spec: WorkloadSpec
    link: AgentLink
    sources: list[Source]
    table: disks.Table
    attach: list[DiskSpec]


async def create(node: Node, spec: WorkloadSpec) -> Workload:
    """A prepared workload that has not started.  On failure nothing of it is left."""
    zone = node.zone("create workload", spec.zone_id)
    link = await zone.agent()
    files = disks.find("create workload", spec.id, spec.stacks)
    # Before the record: a file system that does not answer holds up nothing but this call.
    ids = zone.zone.spec.id_mapping
    sources = await node.volumes.take(spec.volumes, node.config.timeouts.call, ids)
    try:
        runtime, new = admit(node, zone, spec, files)
    except BaseException:
        close(sources)
        raise
    table = disks.Table.of(runtime.workload.disks, files)
    # Which closes them: it may go on when the caller does not.
    work = _conduct(node, runtime, _Work(spec, link, sources, table, table.specs(new)))
    return await node.tasks.conduct(work, f"create workload {spec.id}")


def admit(
    node: Node, zone: ZoneRuntime, spec: WorkloadSpec, files: Mapping[Path, FileId]
) -> tuple[WorkloadRuntime, frozenset[str]]:
    """Take the id, the disks' names and the record, at once or not at all; the disks to attach."""
    if spec.id in node.workloads:
        raise Exists("create workload", spec.id, "there is one already")
    if zone.end:
        raise Refused("create workload", spec.id, f"zone {zone.id}: {zone.end.cause}")
    limit = node.config.limits.workloads_per_zone
    if len(zone.workloads) >= limit:
        raise Exhausted("create workload", spec.id, f"zone {zone.id} has {limit}, as many as it may")
    assigned, new = disks.assign(zone, files.values(), node.config.limits.disks_per_zone)
    workload = Workload(
        id=spec.id,
        zone_id=zone.id,
        state=WorkloadState.CREATING,
        created_at_ns=now_ns(),
        disks=assigned,
        log_path=spec.log_path,
        tty=spec.tty,
        stdin_once=spec.stdin_once,
    )
    runtime = WorkloadRuntime(workload, zone)
    node.put_workload(runtime, workload, INTENT)
    zone.workloads[spec.id] = runtime
    node.workloads[spec.id] = runtime
    checkpoint("workload-create.recorded")
    return runtime, new


async def _conduct(node: Node, runtime: WorkloadRuntime, work: _Work) -> Workload:
    with held(work.sources):
        async with runtime.lock, AsyncExitStack() as undo:
            undo.push_async_callback(undo_create, node, runtime)
            await runtime.zone.end.guard(f"zone {runtime.zone.id}", _prepare(node, runtime, work))
            undo.pop_all()
    return runtime.workload


async def _prepare(node: Node, runtime: WorkloadRuntime, work: _Work) -> None:
    spec, link = work.spec, work.link
    await whole(side_by_side(_attach(node, runtime, disk) for disk in work.attach))
    checkpoint("workload-create.disks-attached")
    await whole(node.volumes.attach(spec.zone_id, spec.id, work.sources))
    checkpoint("workload-create.volumes-attached")
    outputs = open_log(node, runtime)
    checkpoint("workload-create.log-open")
    request = channel_pb2.Request(create_container=_request(runtime, work))
    reply = await whole(link.call(request, node.config.timeouts.call))
    checkpoint("workload-create.prepared")
    streams = streams_of(runtime, link, reply.created, tty=spec.tty, stdin=spec.stdin)
    outputs.begin(link, streams)
    created = runtime.workload.to(WorkloadState.CREATED, streams=streams, pid=reply.created.pid)
    node.put_workload(runtime, created)
    checkpoint("workload-create.created")


async def _attach(node: Node, runtime: WorkloadRuntime, disk: DiskSpec) -> None:
    await node.toolstack.attach_disk(runtime.zone.zone.domain_id, disk)
    checkpoint("workload-create.disk-attached")


def open_log(node: Node, runtime: WorkloadRuntime) -> Outputs:
    """The log of a workload, going on where its journal says."""
    journal = node.journal(runtime)
    journal.parent.mkdir(parents=True, exist_ok=True)
    runtime.outputs = Outputs(node.logs(runtime.workload.log_path, journal))
    return runtime.outputs


def _request(runtime: WorkloadRuntime, work: _Work) -> channel_pb2.CreateContainer:
    spec, table = work.spec, work.table
    return channel_pb2.CreateContainer(
        id=spec.id,
        config_json=spec.oci_config,
        rootfs=table.stack(spec.stack),
        tty=spec.tty,
        stdin=spec.stdin,
        files=spec.files,
        image_volumes=[table.volume(volume) for volume in spec.image_volumes],
        memory_volumes=[_sized(volume, runtime) for volume in spec.memory_volumes],
    )


def _sized(volume: channel_pb2.MemoryVolume, runtime: WorkloadRuntime) -> channel_pb2.MemoryVolume:
    """One that is larger than the zone would say nothing to whoever asks for its size."""
    if volume.size_bytes >= runtime.zone.zone.spec.memory_bytes:
        volume.size_bytes = 0
    return volume


def streams_of(
    runtime: WorkloadRuntime,
    link: AgentLink,
    untrusted: channel_pb2.ProcessCreated,
    *,
    tty: bool,
    stdin: bool,
) -> Streams:
    """The stream numbers an agent gave, checked: those asked for, each its own.  Others are not kept."""
    streams = Streams(untrusted.stdin_stream, untrusted.stdout_stream, untrusted.stderr_stream)
    numbers = [number for number in (streams.stdin, streams.stdout, streams.stderr) if number]
    taken = {number for other in runtime.zone.workloads.values() for number in other.workload.streams.all()}
    right = (
        bool(streams.stdin) == stdin
        and streams.stdout != 0
        and (streams.stderr == 0) == tty
        and len(set(numbers)) == len(numbers)
        and not taken.intersection(numbers)
    )
    if not right:
        link.drop(untrusted)
        cause = f"its agent gave streams {streams.stdin}, {streams.stdout}, {streams.stderr}"
        raise ProtocolViolation("create process", f"in zone {runtime.zone.id}", cause)
    return streams
