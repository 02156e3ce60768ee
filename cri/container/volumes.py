"""Plans a container's mounts: volumes that protectd shares with the zone, and bind mounts from them."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from cri.checks.mounts import is_image, place
from cri.container.kubelet_paths import EmptyDirSource, KubeletFiles, Source
from cri.oci.mounts import CONTAINERS, image_mount, volume_bind
from cri.oci.values import Json, RootImage
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

SHARED = "/run/xenpod/shared"
"""The zone's path of shared volumes (protect.v1, Volume)."""


@dataclass(frozen=True, slots=True)
class VolumePlan:
    """Plan of a container's mounts; ``mounts``: of the OCI configuration."""

    mounts: tuple[Json, ...] = ()
    shared: tuple[pb.Volume, ...] = ()
    images: tuple[pb.ImageVolume, ...] = ()
    memory: tuple[pb.MemoryVolume, ...] = ()
    files: tuple[pb.FileVolume, ...] = ()
    anonymous: tuple[pb.AnonymousVolume, ...] = ()

    @property
    def follows_host(self) -> bool:
        """Whether mounts that the host makes later must reach the container."""
        return any(volume.follow_host for volume in self.shared)


def plan_volumes(
    container_id: str,
    mounts: Sequence[cri.Mount],
    found: Sequence[RootImage] = (),
    in_zone: Mapping[str, Source] = MappingProxyType({}),
    empty_dir_size: int = 0,
    empty_dirs: Mapping[str, int] = MappingProxyType({}),
    anonymous: tuple[pb.AnonymousVolume, ...] = (),
) -> VolumePlan:
    """Plan mounts that have been checked; ``found``: the images among them, in their order.

    ``in_zone``: volumes that live in the zone, by host path.  ``empty_dir_size``: bytes of each emptyDir on
    the zone's disk without a number in ``empty_dirs``; 0: half of the zone's memory, or the free space of its
    scratch disk.  ``anonymous``: of the container's image.
    """
    binds: list[Json] = []
    shared: list[pb.Volume] = []
    images: list[pb.ImageVolume] = []
    memory: list[pb.MemoryVolume] = []
    files: list[pb.FileVolume] = []
    own = f"{CONTAINERS}/{container_id}/volumes"
    for number, mount in enumerate(mounts):
        name = str(number)
        source = in_zone.get(mount.host_path)
        if isinstance(source, EmptyDirSource):
            memory.append(_memory(name, source, empty_dirs.get(source.volume, empty_dir_size)))
            binds.append(_bind(f"{own}/{name}", mount))
            continue
        if isinstance(source, KubeletFiles) and _can_be_copied(source, mount):
            files.append(_files(name, source, mount))
            binds.append(_bind(f"{own}/{name}", mount))
            continue
        if is_image(mount):
            images.append(_image(name, mount, found[len(images)]))
            binds.append(image_mount(container_id, name, place(mount.container_path)))
            continue
        shared.append(_volume(name, mount))
        binds.append(_bind(f"{SHARED}/{container_id}/{name}", mount))
    binds += [volume_bind(f"{own}/{volume.name}", volume.path) for volume in anonymous]
    return VolumePlan(tuple(binds), tuple(shared), tuple(images), tuple(memory), tuple(files), anonymous)


def _can_be_copied(source: KubeletFiles, mount: cri.Mount) -> bool:
    """Whether a copy is enough: nobody expects writes to reach the host, or later mounts of the host."""
    return (mount.readonly or source.writable) and mount.propagation == cri.PROPAGATION_PRIVATE


def _files(name: str, source: KubeletFiles, mount: cri.Mount) -> pb.FileVolume:
    returned = bool(source.return_bytes) and not mount.readonly
    return pb.FileVolume(
        name=name,
        volume=source.volume,
        host_path=mount.host_path,
        keep_current=source.keep_current,
        writable=not mount.readonly,
        map_ids=bool(mount.uidMappings),
        return_bytes=source.return_bytes if returned else 0,
        beneath=source.beneath if returned else "",
    )


def _image(name: str, mount: cri.Mount, found: RootImage) -> pb.ImageVolume:
    return pb.ImageVolume(
        name=name,
        filesystems=[pb.Filesystem(path=path, type=found.type) for path in found.filesystems],
        sub_path=mount.image_sub_path,
    )


def _memory(name: str, source: EmptyDirSource, disk_size: int) -> pb.MemoryVolume:
    """An emptyDir with the mode and owner of the kubelet's directory; in memory also with its size."""
    seen = source.seen
    return pb.MemoryVolume(
        name=name,
        volume=source.volume,
        size_bytes=disk_size if source.on_disk else seen.size_bytes,
        mode=stat.S_IMODE(seen.mode),
        uid=seen.uid,
        gid=seen.gid,
        sub_path=source.sub_path,
        on_disk=source.on_disk,
    )


def _volume(name: str, mount: cri.Mount) -> pb.Volume:
    """The volume of a host path; a missing path becomes a directory, as pods expect."""
    return pb.Volume(
        name=name,
        host_path=mount.host_path,
        readonly=mount.readonly,
        follow_host=mount.propagation == cri.PROPAGATION_HOST_TO_CONTAINER,
        create_directory=True,
        map_ids=bool(mount.uidMappings),
    )


def _bind(source: str, mount: cri.Mount) -> Json:
    follows = mount.propagation == cri.PROPAGATION_HOST_TO_CONTAINER
    way = "rro" if mount.recursive_read_only else "ro" if mount.readonly else "rw"
    return volume_bind(source, place(mount.container_path), way=way, follows_host=follows)


def set_image_ids(mounts: Iterable[cri.Mount], found: Sequence[RootImage]) -> None:
    """Fill in the ids of images, for ContainerStatus, as PullImage answered them."""
    named = (mount.image for mount in mounts if is_image(mount))
    for image, of_store in zip(named, found, strict=True):
        image.image_ref = of_store.id
