"""CreateWorkload: records, attaches the disks, lets the agent prepare the container, connects the log."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Exhausted, Exists, Fault, Refused
from daemonkit.logs import fields
from daemonkit.observe.steps import step
from daemonkit.tasks import Background, complete_all, gather
from protect.config import Timeouts, ZoneLimits
from protect.model.checks import printable
from protect.model.container import ContainerSpec, MemoryVolume, WorkloadSpec
from protect.model.copied_files import FileId, FileVolume
from protect.model.errors import CannotStart
from protect.model.ports import ZoneVolumes
from protect.model.process import CreatedProcess, Streams
from protect.model.toolstack import DiskSpec, Toolstack
from protect.model.volume import VolumeSource, close_all
from protect.model.workload import Workload, WorkloadState
from protect.model.zone import ZoneSpec
from protect.state.registry import Registry
from protect.state.runtime import WorkloadRuntime, ZoneRuntime
from protect.state.store import Intent
from protect.state.timestamps import now_ns
from protect.state.workload_logs import WorkloadLogs
from protect.workloads import disks, sharing
from protect.workloads.delete import WorkloadRemoval, delete_container
from protect.workloads.devices.attach import DeviceAttachment
from protect.workloads.devices.find import DeviceSearch
from protect.workloads.devices.give import give
from protect.workloads.file_copies import FileCopies, TakenFiles
from protect.workloads.start import start_error

log = logging.getLogger(__name__)

INTENT = Intent("workload.create")
_COMMAND_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class WorkloadCreation:
    """Creates workloads: volumes, devices and disks first, then the container."""

    registry: Registry
    toolstack: Toolstack
    volumes: ZoneVolumes
    logs: WorkloadLogs
    tasks: Background
    copies: FileCopies
    device_search: DeviceSearch
    attachment: DeviceAttachment
    workload_removal: WorkloadRemoval
    limits: ZoneLimits
    timeouts: Timeouts

    async def create(self, spec: WorkloadSpec) -> Workload:
        """Prepare a workload without a start; after a failure nothing of the workload is left.

        If the command cannot run, the creation succeeds, and the start fails with the reason.
        """
        zone = self.registry.zone("create workload", spec.zone_id)
        await zone.agent.ready()
        files = disks.find_image_files("create workload", spec.id, spec.stacks)
        # Before the record: a silent file system delays only this call.
        ids = zone.zone.spec.id_mapping
        taken = await self.copies.take(zone, spec)
        found = await self.device_search.find(zone, spec.devices)
        sources: Sequence[VolumeSource] = ()
        try:
            wanted = [*spec.volumes, *taken.shared]
            sources = await self.volumes.take(zone.id, wanted, self.timeouts.call, ids)
            runtime, new = self.admit(zone, spec, files, taken.volumes)
            table = disks.DiskTable.of(runtime.workload.disks, files)
            async with runtime.lock, AsyncExitStack() as undo:
                undo.push_async_callback(self.workload_removal.undo_create, runtime)
                spec = await give(self.attachment, zone, spec, found)
                await self.volumes.attach(spec.zone_id, spec.id, sources)
                checkpoint("workload-create.volumes-attached")
                await self.copies.put(runtime, taken)
                # The agent works in parallel until it needs the disks.
                attached = asyncio.Event()
                await gather(
                    self._attach_all(runtime, table.specs(new), attached),
                    self._prepare(runtime, spec, table, taken, attached),
                )
                undo.pop_all()
        finally:
            close_all(sources)
            taken.close()
        return runtime.workload

    def admit(
        self,
        zone: ZoneRuntime,
        spec: WorkloadSpec,
        files: Mapping[Path, FileId],
        copied: tuple[FileVolume, ...] = (),
    ) -> tuple[WorkloadRuntime, frozenset[str]]:
        """Reserve the id, names of disks and the record, all or nothing; returns the disks to attach."""
        if spec.id in self.registry.workloads:
            raise Exists("create workload", spec.id, "there is one already")
        if zone.end:
            raise Refused("create workload", spec.id, f"zone {zone.id}: {zone.end.cause}")
        limit = self.limits.workloads_per_zone
        if len(zone.workloads) >= limit:
            raise Exhausted("create workload", spec.id, f"zone {zone.id} has {limit}, as many as it may")
        assigned, new = disks.assign(zone, files.values(), disks.limit(self.toolstack, self.limits, zone))
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
        self.registry.put_workload(runtime, workload, INTENT)
        self.registry.add_workload(runtime)
        checkpoint("workload-create.recorded")
        return runtime, new

    async def _attach_all(
        self, runtime: WorkloadRuntime, specs: Sequence[DiskSpec], attached: asyncio.Event
    ) -> None:
        try:
            await complete_all(self._attach(runtime, disk) for disk in specs)
        except Fault:
            # Else the agent waits until its deadline.  In the background, so that the answer keeps the fault.
            self.tasks.spawn(delete_container(runtime), f"give up container {runtime.id}")
            raise
        checkpoint("workload-create.disks-attached")
        attached.set()

    async def _attach(self, runtime: WorkloadRuntime, disk: DiskSpec) -> None:
        with step("disk.attach", zone=runtime.zone.id, workload=runtime.id):
            await self.toolstack.attach_disk(runtime.zone.zone.domain_id, disk)
        checkpoint("workload-create.disk-attached")

    async def _prepare(
        self,
        runtime: WorkloadRuntime,
        spec: WorkloadSpec,
        table: disks.DiskTable,
        taken: TakenFiles,
        attached: asyncio.Event,
    ) -> None:
        if spec.volumes or taken.shared:
            await sharing.reach(self.toolstack, runtime)
        await self.prepare(runtime, _container(runtime, spec, table, taken), attached)

    async def prepare(
        self, runtime: WorkloadRuntime, container: ContainerSpec, attached: asyncio.Event
    ) -> None:
        """Open the log, let the agent prepare the container, and copy the output into the log."""
        outputs = runtime.outputs = await self.logs.open(runtime)
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
            # A workload is CREATED only with its disks, whatever the agent says: disks may be shared.
            await attached.wait()
            workload = runtime.workload.to(
                WorkloadState.CREATED, streams=created.streams, pid=created.pid, start_error=error
            )
            self.registry.put_workload(runtime, workload)
        except BaseException:
            agent.drop_input(created.streams.stdin)  # not in any record
            raise
        checkpoint("workload-create.created")


def _command(oci_config: bytes) -> str:
    try:
        return printable(str(json.loads(oci_config)["process"]["args"][0]), _COMMAND_CHARACTERS)
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""


def _container(
    runtime: WorkloadRuntime, spec: WorkloadSpec, table: disks.DiskTable, taken: TakenFiles
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
        anonymous_volumes=spec.anonymous_volumes,
        writable_bytes=spec.writable_bytes,
    )


def _sized(volume: MemoryVolume, zone: ZoneSpec) -> MemoryVolume:
    """Set the size to half of the zone's memory if there is no size, or the size exceeds the zone."""
    fits = 0 < volume.size_bytes < zone.memory_bytes
    on_scratch = volume.on_disk and zone.scratch_bytes
    return volume if fits or on_scratch else replace(volume, size_bytes=zone.memory_bytes // 2)
