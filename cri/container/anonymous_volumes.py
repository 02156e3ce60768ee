"""Anonymous volumes: a writable directory of the container's own at each VOLUME of its image."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cri.checks.fields import CREATE
from cri.checks.mounts import place
from cri.oci.mounts import file_mounts, kernel_mounts
from cri.oci.spec import FILES
from cri.oci.values import RootImage
from daemonkit.faults import Invalid
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

MOST_VOLUMES = 64
MOST_PATH_BYTES = 4095
MOST_PATHS_BYTES = 64 * 1024
"""Limits of an image's VOLUMEs, of one path, and of all paths together; protectd has the same limits."""

# The volume of an image loses against the mounts that every container has.
_TAKEN = frozenset(
    str(mount["destination"]) for mount in (*kernel_mounts(0), *file_mounts("", FILES, readonly=True))
)


def anonymous_volumes(image: RootImage, mounts: Iterable[cri.Mount]) -> tuple[pb.AnonymousVolume, ...]:
    """A volume for each VOLUME, unless one of CRI's mounts has its place.

    As in containerd, a relative path begins at the root, and mounts above and below volumes are possible.
    Invalid: too many volumes, or a path that no volume can have.
    """
    taken = {place(mount.container_path) for mount in mounts}
    where = sorted(set(_places(image)) - taken - _TAKEN)
    if len(where) > MOST_VOLUMES:
        raise Invalid(CREATE, _subject(image), f"{len(where)} volumes are more than {MOST_VOLUMES}")
    size = sum(len(path.encode()) for path in where)
    if size > MOST_PATHS_BYTES:
        cause = f"their paths have {size} bytes together, more than {MOST_PATHS_BYTES}"
        raise Invalid(CREATE, _subject(image), cause)
    return tuple(pb.AnonymousVolume(name=f"image-{number}", path=path) for number, path in enumerate(where))


def _places(image: RootImage) -> Iterator[str]:
    for untrusted in image.volumes:
        path = place(untrusted)
        cause = _refusal(path)
        if cause:
            raise Invalid(CREATE, f"VOLUME {untrusted!r:.200} of image {image.name}", cause)
        yield path


def _refusal(path: str) -> str:
    if "\0" in path or len(path.encode()) > MOST_PATH_BYTES:
        return f"not a path of at most {MOST_PATH_BYTES} bytes"
    if path == "/":
        return "the image itself is there"
    return "/proc is the kernel's own" if path.startswith("/proc/") else ""


def _subject(image: RootImage) -> str:
    return f"VOLUME of image {image.name}"
