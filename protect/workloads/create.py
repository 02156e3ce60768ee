"""CreateWorkload: records, attaches the disks, lets the agent prepare the container, connects the log."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Exhausted, Exists, Fault, Refused
from daemonkit.logs import fields
from daemonkit.observe.steps import step
from daemonkit.tasks import complete_all, gather
from protect.model.checks import printable
from protect.model.container import ContainerSpec, MemoryVolume, WorkloadSpec
from protect.model.errors import CannotStart
from protect.model.files import FileId, FileVolume
from protect.model.process import CreatedProcess, Streams
from protect.model.toolstack import DiskSpec
from protect.model.volume import VolumeSource, close_all
from protect.model.workload import Workload, WorkloadState
from protect.model.zone import ZoneSpec
from protect.state.manager import ZoneManager, now_ns
from protect.state.outputs import Outputs
from protect.state.runtime import WorkloadRuntime, ZoneRuntime
from protect.state.store import Intent
from protect.workloads import disks, sharing
from protect.workloads import files as copies
from protect.workloads.delete import delete_container, undo_create
from protect.workloads.devices.find import find as find_devices
from protect.workloads.devices.give import give
from protect.workloads.start import start_error

log = logging.getLogger(__name__)

INTENT = Intent("workload.create")
_COMMAND = 200


async def create(manager: ZoneManager, spec: WorkloadSpec) -> Workload:
    """Prepare a workload without a start; after a failure nothing of the workload is left.

    If the command cannot run, the creation succeeds, and the start fails with the reason.
    """
    zone = manager.zone("create workload", spec.zone_id)
    await zone.agent.ready()
    files = disks.find("create workload", spec.id, spec.stacks)
    # Before the record: a silent file system delays only this call.
    ids = zone.zone.spec.id_mapping
    taken = await copies.take(manager, zone, spec)
    found = await find_devices(manager, zone, spec.devices)
    sources: Sequence[VolumeSource] = ()
    try:
        wanted = [*spec.volumes, *taken.shared]
        sources = await manager.volumes.take(zone.id, wanted, manager.config.timeouts.call, ids)
        runtime, new = admit(manager, zone, spec, files, taken.volumes)
        table = disks.DiskTable.of(runtime.workload.disks, files)
        async with runtime.lock, AsyncExitStack() as undo:
            undo.push_async_callback(undo_create, manager, runtime)
            spec = await give(manager, zone, spec, found)
            await manager.volumes.attach(spec.zone_id, spec.id, sources)
            checkpoint("workload-create.volumes-attached")
            await copies.put(manager, runtime, taken)
            # The agent works in parallel until it needs the disks.
            attached = asyncio.Event()
            await gather(
                _attach_all(manager, runtime, table.specs(new), attached),
                _prepare(manager, runtime, spec, table, taken, attached),
            )
            undo.pop_all()
    finally:
        close_all(sources)
        taken.close()
    return runtime.workload


def admit(
    manager: ZoneManager,
    zone: ZoneRuntime,
    spec: WorkloadSpec,
    files: Mapping[Path, FileId],
    copied: tuple[FileVolume, ...] = (),
) -> tuple[WorkloadRuntime, frozenset[str]]:
    """Reserve the id, names of disks and the record, all or nothing; returns the disks to attach."""
    if spec.id in manager.workloads:
        raise Exists("create workload", spec.id, "there is one already")
    if zone.end:
        raise Refused("create workload", spec.id, f"zone {zone.id}: {zone.end.cause}")
    limit = manager.config.limits.workloads_per_zone
    if len(zone.workloads) >= limit:
        raise Exhausted("create workload", spec.id, f"zone {zone.id} has {limit}, as many as it may")
    assigned, new = disks.assign(zone, files.values(), disks.limit(manager, zone))
    workload = Workload(
        id=spec.id,
        zone_id=zone.id,
        state=WorkloadState.CREATING,
        created_at_ns=now_ns(),
        disks=assigned,
        log_path=spec.log_path,
        tty=spec.tty,
        stdin_once=spec.stdin_once,
        command=_command(spec.oci_config),
        files=copied,
    )
    runtime = WorkloadRuntime(workload, zone)
    manager.put_workload(runtime, workload, INTENT)
    manager.add_workload(runtime)
    checkpoint("workload-create.recorded")
    return runtime, new


async def _attach_all(
    manager: ZoneManager, runtime: WorkloadRuntime, specs: Sequence[DiskSpec], attached: asyncio.Event
) -> None:
    try:
        await complete_all(_attach(manager, runtime, disk) for disk in specs)
    except Fault:
        # Else the agent waits until its deadline.  In the background: the answer must not replace this fault.
        manager.tasks.spawn(delete_container(runtime), f"give up container {runtime.id}")
        raise
    checkpoint("workload-create.disks-attached")
    attached.set()


async def _attach(manager: ZoneManager, runtime: WorkloadRuntime, disk: DiskSpec) -> None:
    with step("disk.attach", zone=runtime.zone.id, workload=runtime.id):
        await manager.toolstack.attach_disk(runtime.zone.zone.domain_id, disk)
    checkpoint("workload-create.disk-attached")


async def _prepare(
    manager: ZoneManager,
    runtime: WorkloadRuntime,
    spec: WorkloadSpec,
    table: disks.DiskTable,
    taken: copies.TakenFiles,
    attached: asyncio.Event,
) -> None:
    if spec.volumes or taken.shared:
        await sharing.reach(manager, runtime)
    await prepare(manager, runtime, _container(runtime, spec, table, taken), attached)


async def prepare(
    manager: ZoneManager, runtime: WorkloadRuntime, container: ContainerSpec, attached: asyncio.Event
) -> None:
    """Open the log, let the agent prepare the container, and copy the output into the log."""
    outputs = runtime.outputs = await open_log(manager, runtime)
    checkpoint("workload-create.log-open")
    agent = runtime.zone.agent
    try:
        created, error = await agent.create_container(container), ""
    except CannotStart as fault:
        created, error = CreatedProcess(Streams(), 0), start_error(runtime.workload, fault)
        log.info("it will not start", extra=fields(workload=runtime.id, cause=error))
        # The log exists, and is empty.
        await outputs.close()
    checkpoint("workload-create.prepared")
    outputs.begin(agent, created.streams)
    try:
        # A workload is CREATED only with its disks, whatever the agent says: other workloads may share disks.
        await attached.wait()
        workload = runtime.workload.to(
            WorkloadState.CREATED, streams=created.streams, pid=created.pid, start_error=error
        )
        manager.put_workload(runtime, workload)
    except BaseException:
        agent.drop_input(created.streams.stdin)  # not in any record
        raise
    checkpoint("workload-create.created")


def _command(oci_config: bytes) -> str:
    try:
        return printable(str(json.loads(oci_config)["process"]["args"][0]), _COMMAND)
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""


async def open_log(manager: ZoneManager, runtime: WorkloadRuntime) -> Outputs:
    """Open the log of a workload at the position in the journal."""
    journal = manager.journal(runtime)
    journal.parent.mkdir(parents=True, exist_ok=True)
    return Outputs(await manager.logs(runtime.workload.log_path, journal))


def _container(
    runtime: WorkloadRuntime, spec: WorkloadSpec, table: disks.DiskTable, taken: copies.TakenFiles
) -> ContainerSpec:
    return ContainerSpec(
        id=spec.id,
        oci_config=spec.oci_config,
        rootfs=table.stack(spec.stack),
        tty=spec.tty,
        stdin=spec.stdin,
        files=spec.files,
        image_volumes=[table.volume(volume) for volume in spec.image_volumes],
        memory_volumes=[_sized(volume, runtime.zone.zone.spec) for volume in spec.memory_volumes],
        file_volumes=taken.copied(spec.id),
        shared_volumes=[volume.name for volume in taken.shared],
        writable_bytes=spec.writable_bytes,
    )


def _sized(volume: MemoryVolume, zone: ZoneSpec) -> MemoryVolume:
    """Set the size to half of the zone's memory if there is no size, or the size exceeds the zone."""
    fits = 0 < volume.size_bytes < zone.memory_bytes
    on_scratch = volume.on_disk and zone.scratch_bytes
    return volume if fits or on_scratch else replace(volume, size_bytes=zone.memory_bytes // 2)
