"""Checks of a container's mounts: every mount that cannot be honoured is refused by name."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence

from cri.checks.fields import CREATE, check_path
from cri.checks.userns import PodIdMapping, volume_is_mapped
from daemonkit.faults import Invalid, Refused
from xenpod_proto.cri.v1 import runtime_pb2 as cri

MOST_MOUNTS = 256
"""Maximum of mounts in a container; protectd has the same limit."""
_MOST_IMAGES = 32


def check_mounts(mounts: Sequence[cri.Mount], pod: PodIdMapping | None) -> None:
    """Invalid or Refused for mounts that cannot be honoured; ``pod``: its user namespace's id mapping."""
    if len(mounts) > MOST_MOUNTS:
        raise Invalid(CREATE, "mounts", f"{len(mounts)} are more than {MOST_MOUNTS}")
    _check_images(mounts)
    for mount in mounts:
        subject = f"mount {mount.container_path!r:.200}"
        _check_place(mount)
        _check_source(subject, mount)
        _check_options(subject, mount)
        volume_is_mapped(CREATE, subject, mount, pod)


def _check_place(mount: cri.Mount) -> None:
    check_path(CREATE, "container_path", mount.container_path, absolute=True)
    where = place(mount.container_path)
    if where == "/":
        raise Invalid(CREATE, "container_path '/'", "the image is there")
    if where == "/proc" or where.startswith("/proc/"):
        raise Invalid(CREATE, f"container_path {where!r:.200}", "/proc is the kernel's own")


def _check_source(subject: str, mount: cri.Mount) -> None:
    if is_image(mount):
        _check_image(subject, mount)
        return
    if mount.image_sub_path:
        raise Invalid(CREATE, subject, "it has an image_sub_path and no image")
    if not mount.host_path:
        raise Invalid(CREATE, subject, "it has neither a host_path nor an image")
    check_path(CREATE, "host_path", mount.host_path, absolute=True)


def _check_options(subject: str, mount: cri.Mount) -> None:
    if mount.propagation not in cri.MountPropagation.values():
        raise Invalid(CREATE, subject, f"propagation {mount.propagation}: unknown")
    if mount.recursive_read_only:
        if not mount.readonly:
            raise Invalid(CREATE, subject, "recursive_read_only without readonly")
        if mount.propagation != cri.PROPAGATION_PRIVATE:
            raise Invalid(CREATE, subject, "recursive_read_only with a propagation other than PRIVATE")
    if mount.propagation == cri.PROPAGATION_BIDIRECTIONAL:
        cause = "this node runs a pod in a virtual machine, whose mounts cannot appear on the node"
        hint = "use mountPropagation HostToContainer, or run the pod on a node with another runtime"
        raise Refused(CREATE, subject, f"mountPropagation Bidirectional: {cause}", hint)


def is_image(mount: cri.Mount) -> bool:
    """Whether the mount is of an image; a mount without name and host path counts as an image, too."""
    return mount.HasField("image") and bool(mount.image.image or not mount.host_path)


def _check_images(mounts: Iterable[cri.Mount]) -> None:
    """Invalid: too many images."""
    found = sum(is_image(mount) for mount in mounts)
    if found > _MOST_IMAGES:
        raise Invalid(CREATE, "mounts", f"{found} images are more than {_MOST_IMAGES}")


def _check_image(subject: str, mount: cri.Mount) -> None:
    """Invalid for fields that CRI does not allow with an image."""
    if not mount.image.image:
        raise Invalid(CREATE, subject, "no image is named")
    if mount.host_path:
        raise Invalid(CREATE, subject, "it has an image and a host_path")
    if not mount.readonly:
        raise Invalid(CREATE, subject, "an image is mounted to be written", "set readonly")
    if mount.image_sub_path:
        check_path(CREATE, "image_sub_path", mount.image_sub_path, absolute=False)


def place(container_path: str) -> str:
    """The canonical form of a container path: ``/a/b`` for ``//a/./b/``."""
    return posixpath.normpath("/" + container_path.strip("/"))
