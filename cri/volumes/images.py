"""Images, or parts of them, as volumes: Mount.image and image_sub_path."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cri.checks.fields import check_path
from cri.oci.values import CREATE
from cri.state.node import Images, RootImage
from daemonkit.faults import Invalid
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_LIMIT = 32


def is_image(mount: cri.Mount) -> bool:
    """Whether an image is meant; one without a name, and without a path of the host, is meant to be."""
    return mount.HasField("image") and bool(mount.image.image or not mount.host_path)


def check_images(mounts: Iterable[cri.Mount]) -> None:
    """Invalid when there are too many."""
    found = sum(is_image(mount) for mount in mounts)
    if found > _LIMIT:
        raise Invalid(CREATE, "mounts", f"{found} images are more than {_LIMIT}")


def check_image(subject: str, mount: cri.Mount) -> None:
    """Invalid for what CRI does not allow with an image."""
    if not mount.image.image:
        raise Invalid(CREATE, subject, "no image is named")
    if mount.host_path:
        raise Invalid(CREATE, subject, "it has an image and a host_path")
    if not mount.readonly:
        raise Invalid(CREATE, subject, "an image is mounted to be written", "set readonly")
    if mount.image_sub_path:
        check_path(CREATE, "image_sub_path", mount.image_sub_path, absolute=False)


def resolve(images: Images, mounts: Iterable[cri.Mount]) -> tuple[RootImage, ...]:
    """Of mounts that have been checked; Missing when an image is not here."""
    return tuple(images.resolve(mount.image.image) for mount in mounts if is_image(mount))


def tell(mounts: Iterable[cri.Mount], found: Sequence[RootImage]) -> None:
    """What ContainerStatus shows of these very mounts: images as PullImage answered them."""
    named = (mount.image for mount in mounts if is_image(mount))
    for image, of_store in zip(named, found, strict=True):
        image.image_ref = of_store.id
