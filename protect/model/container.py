"""Specs of workloads and execs, in two forms: callers' requests, and calls to the agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from protect.model.copied_files import FileVolume
from protect.model.volume import DeviceRequest, Volume


@dataclass(frozen=True, slots=True)
class ImageFilesystem:
    """A file system in a file of the host; ``type`` is the kernel's name for its type."""

    path: Path
    type: str


Stack = tuple[ImageFilesystem, ...]
"""The file systems of an image, beginning with the lowest."""

STACK_LIMIT = 8
"""Most file systems of an image; the agent takes no more."""


@dataclass(frozen=True, slots=True)
class ImageVolume:
    """An image, or its part at ``sub_path``, for the workload's mounts at ``volumes/<name>``."""

    name: str
    stack: Stack
    sub_path: str = ""


@dataclass(frozen=True, slots=True)
class MemoryVolume:
    """A part of the zone's memory or scratch disk, for the workload's mounts at ``volumes/<name>``.

    ``volume``: the volume's name in the zone; workloads with the same name share the volume.  ``size_bytes``
    0: half of the zone's memory, or the whole disk.  ``on_disk``: on the scratch disk if the zone has one.
    ``mode``, ``uid`` and ``gid`` apply to the root directory.
    """

    name: str
    volume: str
    size_bytes: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0
    sub_path: str = ""
    on_disk: bool = False


@dataclass(frozen=True, slots=True)
class AnonymousVolume:
    """A writable directory that begins as the root's at ``path``, for the mounts at ``volumes/<name>``."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class ContainerFile:
    """A small file for the container, such as its resolv.conf, with a plain name and permission bits."""

    name: str
    mode: int
    content: bytes


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """A workload to create, validated; images are files of the host."""

    id: str
    zone_id: str
    oci_config: bytes
    stack: Stack
    tty: bool = False
    stdin: bool = False
    stdin_once: bool = False
    log_path: str = ""
    files: Sequence[ContainerFile] = ()
    volumes: Sequence[Volume] = ()
    image_volumes: Sequence[ImageVolume] = ()
    memory_volumes: Sequence[MemoryVolume] = ()
    file_volumes: Sequence[FileVolume] = ()
    anonymous_volumes: Sequence[AnonymousVolume] = ()
    devices: Sequence[DeviceRequest] = ()
    writable_bytes: int = 0
    """Limit of bytes written to the root; 0: no limit of its own."""

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The stacks of all images, beginning with the root's."""
        return (self.stack, *(volume.stack for volume in self.image_volumes))


@dataclass(frozen=True, slots=True)
class ExecSpec:
    """An exec, validated; ``process`` is an OCI process object, ``timeout`` in seconds, 0 for none."""

    workload_id: str
    process: bytes
    tty: bool = False
    stdin: bool = False
    timeout: float = 0.0


@dataclass(frozen=True, slots=True)
class DiskFilesystem:
    """A file system on a disk of the zone ("xvda"); ``type`` is the kernel's name for its type."""

    disk: str
    type: str


@dataclass(frozen=True, slots=True)
class DiskVolume:
    """An ``ImageVolume`` with disks instead of image files."""

    name: str
    filesystems: tuple[DiskFilesystem, ...]
    sub_path: str


@dataclass(frozen=True, slots=True)
class CopiedVolume:
    """A ``FileVolume`` with a copy in the zone; ``owner``: a workload, "" for the zone."""

    name: str
    owner: str
    volume: str


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """A container for the agent to prepare: a ``WorkloadSpec`` with disks for the host's files."""

    id: str
    oci_config: bytes
    rootfs: tuple[DiskFilesystem, ...]
    tty: bool
    stdin: bool
    files: Sequence[ContainerFile]
    image_volumes: Sequence[DiskVolume]
    memory_volumes: Sequence[MemoryVolume]
    file_volumes: Sequence[CopiedVolume] = ()
    shared_volumes: Sequence[str] = ()
    """Names of ``FileVolume``s without a copy: the zone shares the host's file."""
    anonymous_volumes: Sequence[AnonymousVolume] = ()
    writable_bytes: int = 0
