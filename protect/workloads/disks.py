"""The disks of a workload: of the image that is its root, and of those that it has as volumes.

A file is one disk of its zone, however many of the zone's workloads use it: who comes later shares it, who
goes last detaches it.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase

from daemonkit.faults import Exhausted, Invalid
from protect.model.workload import Disk, FileId, WorkloadState
from protect.state.node import WorkloadRuntime, ZoneRuntime
from protect.toolstack.port import DiskSpec
from xenpod_proto.channel.v1 import channel_pb2

STACK_LIMIT = 8
"""File systems of an image; the agent takes no more."""


@dataclass(frozen=True, slots=True)
class Filesystem:
    """One in a file of the host; the type is the kernel's name of it."""

    path: Path
    type: str


Stack = tuple[Filesystem, ...]
"""The file systems of an image, the lowest first."""


@dataclass(frozen=True, slots=True)
class ImageVolume:
    """An image that the workload's mounts find at ``volumes/<name>``, or the part at ``sub_path`` of it."""

    name: str
    stack: Stack
    sub_path: str = ""


def find(operation: str, workload_id: str, stacks: Iterable[Stack]) -> dict[Path, FileId]:
    """The file behind each path, in the stacks' order.

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


def assign(zone: ZoneRuntime, files: Iterable[FileId], limit: int) -> tuple[tuple[Disk, ...], frozenset[str]]:
    """A disk for each file, and the vdevs of those that have to be attached.

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
    if len(taken) + len(new) > limit:
        cause = f"zone {zone.id} has {len(taken)} disks, {len(new)} more would be more than {limit}"
        raise Exhausted("attach disk", zone.id, cause, "limits.disks_per_zone of protectd.toml says how many")
    fresh = {file: Disk(vdev, file) for file, vdev in zip(new, _free(taken), strict=False)}
    return tuple((shared | fresh)[file] for file in wanted), frozenset(disk.vdev for disk in fresh.values())


def _free(taken: set[str]) -> Iterator[str]:
    """Names that nobody has: xvda .. xvdz, xvdaa .. xvdyz; ``disks_per_zone`` is at most so many."""
    names = (f"xvd{first}{second}" for first in ("", *ascii_lowercase[:-1]) for second in ascii_lowercase)
    return (name for name in names if name not in taken)


def let_go(runtime: WorkloadRuntime) -> tuple[str, ...]:
    """It holds its disks no more; those that nobody else holds are its to detach."""
    runtime.holds_disks = False
    others = (other for other in runtime.zone.workloads.values() if other.holds_disks)
    held = {disk.vdev for other in others for disk in other.workload.disks}
    return tuple(disk.vdev for disk in runtime.workload.disks if disk.vdev not in held)


@dataclass(frozen=True, slots=True)
class Table:
    """Which disk each path is."""

    vdevs: Mapping[Path, str]

    @classmethod
    def of(cls, disks: Iterable[Disk], files: Mapping[Path, FileId]) -> Table:
        vdevs = {disk.file: disk.vdev for disk in disks}
        return cls({path: vdevs[file] for path, file in files.items()})

    def specs(self, new: frozenset[str]) -> list[DiskSpec]:
        """What to attach."""
        paths = {vdev: path for path, vdev in self.vdevs.items()}
        return [DiskSpec(vdev, path, readonly=True) for vdev, path in paths.items() if vdev in new]

    def stack(self, stack: Stack) -> list[channel_pb2.Filesystem]:
        """What the agent is told of an image."""
        return [channel_pb2.Filesystem(disk=self.vdevs[one.path], type=one.type) for one in stack]

    def volume(self, volume: ImageVolume) -> channel_pb2.ImageVolume:
        """What the agent is told of a volume."""
        return channel_pb2.ImageVolume(
            name=volume.name, filesystems=self.stack(volume.stack), sub_path=volume.sub_path
        )
