"""The disks of a workload: its root's, and those of the images that it has as volumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from daemonkit.faults import Invalid
from protect.toolstack.port import DiskSpec
from xenpod_proto.channel.v1 import channel_pb2


@dataclass(frozen=True, slots=True)
class ImageVolume:
    """An image that the workload's mounts find at ``volumes/<name>``, or the part at ``sub_path`` of it."""

    name: str
    image_path: Path
    image_type: str
    sub_path: str = ""


def files(root: Path, volumes: Sequence[ImageVolume]) -> tuple[Path, ...]:
    """One disk for each image, however often it is used; the root's is the first."""
    return tuple(dict.fromkeys((root, *(volume.image_path for volume in volumes))))


def check_files(operation: str, workload_id: str, paths: Sequence[Path]) -> None:
    """Invalid when one is not there."""
    for path in paths:
        if not path.is_file():
            raise Invalid(operation, workload_id, f"there is no image file {path}")


def specs(vdevs: Sequence[str], paths: Sequence[Path]) -> tuple[DiskSpec, ...]:
    """What to attach."""
    return tuple(DiskSpec(vdev, path, readonly=True) for vdev, path in zip(vdevs, paths, strict=True))


def message(volume: ImageVolume, vdevs: Mapping[Path, str]) -> channel_pb2.ImageVolume:
    """What the agent is told of a volume."""
    return channel_pb2.ImageVolume(
        name=volume.name, disk=vdevs[volume.image_path], type=volume.image_type, sub_path=volume.sub_path
    )
