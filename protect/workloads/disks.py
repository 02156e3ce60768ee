"""The disks of a workload: of the root image, and of image volumes.

A file is one disk of a zone for all workloads: later workloads share the disk, and the last workload detaches
the disk.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from daemonkit.faults import Exhausted, Invalid
from protect.config import ZoneLimits
from protect.model.capacity.host_resources import DiskLimit
from protect.model.container import DiskFilesystem, DiskVolume, ImageVolume, Stack
from protect.model.copied_files import FileId
from protect.model.toolstack import DiskSpec, Toolstack
from protect.model.workload import WorkloadDisk, WorkloadState
from protect.state import disk_names
from protect.state.runtime import WorkloadRuntime, ZoneRuntime


def find_image_files(operation: str, workload_id: str, stacks: Iterable[Stack]) -> dict[Path, FileId]:
    """Find the file behind each path, in the stacks' order.

    Invalid: a file does not exist, or is in a stack twice under any names (overlayfs takes no layer twice).
    """
    found: dict[Path, FileId] = {}
    for stack in stacks:
        files = set()
        for filesystem in stack:
            path = filesystem.path
            if path not in found:
                found[path] = _identify(operation, workload_id, path)
            if found[path] in files:
                raise Invalid(operation, workload_id, f"the file of {path} is in one stack twice")
            files.add(found[path])
    return found


def _identify(operation: str, workload_id: str, path: Path) -> FileId:
    try:
        status = path.stat()
    except OSError as error:
        cause = f"there is no image file {path}: {error.strerror}"
        raise Invalid(operation, workload_id, cause) from None
    if not stat.S_ISREG(status.st_mode):
        raise Invalid(operation, workload_id, f"there is no image file {path}: it is not a regular file")
    return status.st_dev, status.st_ino


def limit(toolstack: Toolstack, limits: ZoneLimits, zone: ZoneRuntime) -> DiskLimit:
    """Most disks of the zone, by configuration and by size."""
    configured = DiskLimit(limits.disks_per_zone, "limits.disks_per_zone of protectd.toml says how many")
    spec = zone.zone.spec
    affords = toolstack.disk_limit(spec.memory_bytes, spec.vcpus)
    if spec.scratch_bytes:
        # The scratch disk counts, too.
        affords = replace(affords, disks=affords.disks - 1)
    return min(affords, configured, key=lambda one: one.disks)


def assign(
    zone: ZoneRuntime, files: Iterable[FileId], limit: DiskLimit
) -> tuple[tuple[WorkloadDisk, ...], frozenset[str]]:
    """Assign a disk to each file; also returns the vdevs of disks to attach.

    Disks are shared with workloads after their creation and before their deletion: such disks are attached,
    and stay while a workload holds them.  Exhausted: the zone would have more than ``limit`` disks.
    """
    taken = disk_names.taken(zone)
    shared = {
        disk.file: disk
        for other in zone.workloads.values()
        if other.workload.state is not WorkloadState.CREATING and not other.deleting
        for disk in other.workload.disks
    }
    wanted = dict.fromkeys(files)
    new = [file for file in wanted if file not in shared]
    if len(taken) + len(new) > limit.disks:
        cause = f"zone {zone.id} has {len(taken)} disks, {len(new)} more would be more than {limit.disks}"
        raise Exhausted("attach disk", zone.id, f"{cause}: {limit.bound}", "a larger zone can have more")
    fresh = {file: WorkloadDisk(vdev, file) for file, vdev in zip(new, disk_names.free(taken), strict=False)}
    return tuple((shared | fresh)[file] for file in wanted), frozenset(disk.vdev for disk in fresh.values())


def release_disks(runtime: WorkloadRuntime) -> tuple[str, ...]:
    """Release a workload's disks; returns disks to detach, without another user."""
    runtime.holds_disks = False
    others = (other for other in runtime.zone.workloads.values() if other.holds_disks)
    held = {disk.vdev for other in others for disk in other.workload.disks}
    return tuple(disk.vdev for disk in runtime.workload.disks if disk.vdev not in held)


@dataclass(frozen=True, slots=True)
class DiskTable:
    """The disk for each path."""

    vdevs: Mapping[Path, str]

    @classmethod
    def of(cls, disks: Iterable[WorkloadDisk], files: Mapping[Path, FileId]) -> DiskTable:
        vdevs = {disk.file: disk.vdev for disk in disks}
        return cls({path: vdevs[file] for path, file in files.items()})

    def specs(self, new: frozenset[str]) -> list[DiskSpec]:
        """The disks to attach."""
        paths = {vdev: path for path, vdev in self.vdevs.items()}
        return [DiskSpec(vdev, path, readonly=True) for vdev, path in paths.items() if vdev in new]

    def stack(self, stack: Stack) -> tuple[DiskFilesystem, ...]:
        """An image in the agent's form."""
        return tuple(DiskFilesystem(self.vdevs[one.path], one.type) for one in stack)

    def volume(self, volume: ImageVolume) -> DiskVolume:
        """A volume in the agent's form."""
        return DiskVolume(volume.name, self.stack(volume.stack), volume.sub_path)
