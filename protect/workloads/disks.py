"""The disks of a workload: those of its root image, and those of images that are its volumes.

A file is one disk of its zone, however many of the zone's workloads use it: later ones share it, and the
last one detaches it.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase

from daemonkit.faults import Exhausted, Invalid
from protect.model.container import DiskFilesystem, DiskVolume, ImageVolume, Stack
from protect.model.files import FileId
from protect.model.room.host import DiskLimit
from protect.model.toolstack import DiskSpec
from protect.model.workload import WorkloadDisk, WorkloadState
from protect.state.manager import ZoneManager
from protect.state.runtime import WorkloadRuntime, ZoneRuntime


def find(operation: str, workload_id: str, stacks: Iterable[Stack]) -> dict[Path, FileId]:
    """Find the file behind each path, in the stacks' order.

    Invalid: one is not there, or is in a stack twice, by whatever name (overlayfs takes no layer twice).
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


def limit(manager: ZoneManager, zone: ZoneRuntime) -> DiskLimit:
    """How many disks the zone can have: as many as configured, or as its size affords."""
    configured = DiskLimit(
        manager.config.limits.disks_per_zone, "limits.disks_per_zone of protectd.toml says how many"
    )
    affords = manager.toolstack.disk_limit(zone.zone.spec.memory_bytes, zone.zone.spec.vcpus)
    return min(affords, configured, key=lambda one: one.disks)


def assign(
    zone: ZoneRuntime, files: Iterable[FileId], limit: DiskLimit
) -> tuple[tuple[WorkloadDisk, ...], frozenset[str]]:
    """Assign a disk to each file; also returns the vdevs of the disks that have to be attached.

    Shared are those of workloads that have been created whole and are not being deleted: theirs are
    attached, and stay while somebody holds them.  Exhausted: the zone would have more than ``limit``.
    """
    taken = {disk.vdev for other in zone.workloads.values() for disk in other.workload.disks}
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
    fresh = {file: WorkloadDisk(vdev, file) for file, vdev in zip(new, _free(taken), strict=False)}
    return tuple((shared | fresh)[file] for file in wanted), frozenset(disk.vdev for disk in fresh.values())


def _free(taken: set[str]) -> Iterator[str]:
    """Free names: xvda .. xvdz, xvdaa .. xvdyz, as many as ``disks_per_zone`` may be."""
    names = (f"xvd{first}{second}" for first in ("", *ascii_lowercase[:-1]) for second in ascii_lowercase)
    return (name for name in names if name not in taken)


def release_disks(runtime: WorkloadRuntime) -> tuple[str, ...]:
    """Release a workload's disks; returns those to detach, which no other workload holds."""
    runtime.holds_disks = False
    others = (other for other in runtime.zone.workloads.values() if other.holds_disks)
    held = {disk.vdev for other in others for disk in other.workload.disks}
    return tuple(disk.vdev for disk in runtime.workload.disks if disk.vdev not in held)


@dataclass(frozen=True, slots=True)
class DiskTable:
    """The disk of each path."""

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
        """An image in the form that the agent takes."""
        return tuple(DiskFilesystem(self.vdevs[one.path], one.type) for one in stack)

    def volume(self, volume: ImageVolume) -> DiskVolume:
        """A volume in the form that the agent takes."""
        return DiskVolume(volume.name, self.stack(volume.stack), volume.sub_path)
