"""What of a container's mounts can be honoured; everything else is refused by name."""

from __future__ import annotations

from collections.abc import Sequence

from cri.checks.fields import check_path
from cri.checks.userns import IdMapping, volume_is_mapped
from cri.oci.values import CREATE
from cri.volumes.images import check_image, check_images, is_image
from cri.volumes.places import place
from daemonkit.faults import Invalid, Refused
from xenpod_proto.cri.v1 import runtime_pb2 as cri

LIMIT = 256
"""Mounts of one container; protectd's limit too."""


def check_mounts(mounts: Sequence[cri.Mount], pod: IdMapping | None) -> None:
    """Invalid or Refused for what cannot be honoured; ``pod``: the mapping of its user namespace."""
    if len(mounts) > LIMIT:
        raise Invalid(CREATE, "mounts", f"{len(mounts)} are more than {LIMIT}")
    check_images(mounts)
    for mount in mounts:
        subject = f"mount {mount.container_path!r:.200}"
        _check_place(mount)
        _check_source(subject, mount)
        _check_way(subject, mount)
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
        check_image(subject, mount)
        return
    if mount.image_sub_path:
        raise Invalid(CREATE, subject, "it has an image_sub_path and no image")
    if not mount.host_path:
        raise Invalid(CREATE, subject, "it has neither a host_path nor an image")
    check_path(CREATE, "host_path", mount.host_path, absolute=True)


def _check_way(subject: str, mount: cri.Mount) -> None:
    if mount.propagation not in cri.MountPropagation.values():
        raise Invalid(CREATE, subject, f"propagation {mount.propagation}: unknown")
    if mount.recursive_read_only:
        if not mount.readonly:
            raise Invalid(CREATE, subject, "recursive_read_only without readonly")
        if mount.propagation != cri.PROPAGATION_PRIVATE:
            raise Invalid(CREATE, subject, "recursive_read_only with a propagation other than PRIVATE")
    if mount.propagation == cri.PROPAGATION_BIDIRECTIONAL:
        cause = "what a container mounts is in its zone, and cannot appear on the host"
        hint = "use HostToContainer, or a runtime handler of the host (RuntimeClass)"
        raise Refused(CREATE, subject, f"bidirectional propagation: {cause}", hint)
