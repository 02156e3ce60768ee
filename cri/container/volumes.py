"""Plan a container's mounts: volumes that protectd shares with its zone, and binds from there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cri.checks.fields import CREATE
from cri.checks.mounts import is_image, place
from cri.container.memory_volumes import MemoryVolumeSource, find, message
from cri.oci.mounts import CONTAINERS, image_mount
from cri.oci.values import Json, RootImage
from daemonkit.faults import Refused
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

SHARED = "/run/xenpod/shared"
"""The path in a zone of what protectd shares with it (protect.v1, Volume)."""


@dataclass(frozen=True, slots=True)
class VolumePlan:
    """What a container's mounts become; ``mounts`` are of the OCI configuration."""

    mounts: tuple[Json, ...] = ()
    shared: tuple[pb.Volume, ...] = ()
    images: tuple[pb.ImageVolume, ...] = ()
    memory: tuple[pb.MemoryVolume, ...] = ()

    @property
    def follows_host(self) -> bool:
        """Whether mounts that the host makes later must reach the container."""
        return any(volume.follow_host for volume in self.shared)


def plan(container_id: str, mounts: Sequence[cri.Mount], found: Sequence[RootImage] = ()) -> VolumePlan:
    """Plan mounts that have been checked; ``found``: the images among them, in their order."""
    binds: list[Json] = []
    shared: list[pb.Volume] = []
    images: list[pb.ImageVolume] = []
    memory: list[pb.MemoryVolume] = []
    in_memory = find([mount.host_path for mount in mounts])
    for number, mount in enumerate(mounts):
        name = str(number)
        if place_of := in_memory.get(mount.host_path):
            memory.append(_memory(name, mount.host_path, place_of))
            binds.append(_bind(f"{CONTAINERS}/{container_id}/volumes/{name}", mount))
            continue
        if is_image(mount):
            images.append(_image(name, mount, found[len(images)]))
            binds.append(image_mount(container_id, name, place(mount.container_path)))
            continue
        shared.append(_volume(name, mount))
        binds.append(_bind(f"{SHARED}/{container_id}/{name}", mount))
    return VolumePlan(tuple(binds), tuple(shared), tuple(images), tuple(memory))


def _image(name: str, mount: cri.Mount, found: RootImage) -> pb.ImageVolume:
    return pb.ImageVolume(
        name=name,
        filesystems=[pb.Filesystem(path=path, type=found.type) for path in found.filesystems],
        sub_path=mount.image_sub_path,
    )


def _memory(name: str, path: str, place_of: MemoryVolumeSource) -> pb.MemoryVolume:
    try:
        return message(name, place_of)
    except OSError as error:
        raise Refused(CREATE, f"mount of {path!r:.200}", error.strerror or str(error)) from None


def _volume(name: str, mount: cri.Mount) -> pb.Volume:
    """The volume of a host path, which is made a directory if it does not exist, as pods expect."""
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
    options = ["rbind", "rslave" if follows else "rprivate", way]
    return {
        "destination": place(mount.container_path),
        "type": "bind",
        "source": source,
        "options": options,
    }


def set_image_ids(mounts: Iterable[cri.Mount], found: Sequence[RootImage]) -> None:
    """Fill in the ids of images, for ContainerStatus, as PullImage answered them."""
    named = (mount.image for mount in mounts if is_image(mount))
    for image, of_store in zip(named, found, strict=True):
        image.image_ref = of_store.id
