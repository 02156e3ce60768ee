"""The kubelet's paths of volumes that live in the pod's zone, not on the host.

They are known by their names below the kubelet's root (kubernetes/pkg/volume/util, kubelet_getters.go):

- ``<root>/pods/<uid>/volumes/kubernetes.io~empty-dir/<volume>``: an emptyDir;
- ``<root>/pods/<uid>/volume-subpaths/<volume>/<container>/<number>``: a bind mount of a part of a volume,
  for a subPath;

and by the mounts that they are in: an emptyDir of medium Memory is a tmpfs of its own, one on disk is in the
file system of the kubelet's root.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cri.checks.fields import CREATE
from cri.state.sandbox import EMPTY_DIR
from daemonkit.faults import Refused, Unsupported
from daemonkit.host import mountinfo
from daemonkit.host.files import HostCalls

_POD = r"(?P<pod>/(?:[^/]+/)*pods/[^/]+)"
_WHOLE = re.compile(_POD + r"/volumes/kubernetes\.io~empty-dir/(?P<volume>[^/]+)")
_PART = re.compile(_POD + r"/volume-subpaths/(?P<volume>[^/]+)/[^/]+/[0-9]+")
_CALLS = HostCalls()

LOCAL = frozenset(
    "bcachefs btrfs erofs ext2 ext3 ext4 f2fs jfs overlay ramfs reiserfs rootfs tmpfs xfs zfs".split()
)
"""Kinds of file systems that no file server can hold.  What is on another is shared, whatever its name."""


@dataclass(frozen=True, slots=True)
class SeenPath:
    """What is at a path: its file system's kind and device, the path in that, its mode and owner.

    ``size_bytes`` is the file system's.
    """

    kind: str
    device: str
    root: str
    mode: int
    uid: int
    gid: int
    size_bytes: int


See = Callable[[str], SeenPath | None]
"""None: there is nothing."""


@dataclass(frozen=True, slots=True)
class EmptyDirSource:
    """An emptyDir, and the part of it that is meant; ``seen`` is its root on the host."""

    volume: str
    on_disk: bool
    seen: SeenPath
    sub_path: str = ""


async def look(sandbox_id: str, paths: Sequence[str], in_zone: Sequence[str]) -> Mapping[str, EmptyDirSource]:
    """``find``, on this host.  Refused when a file system does not answer."""
    if not any(_is_known(path) for path in paths):
        return {}
    try:
        return await _CALLS.run(sandbox_id, lambda: find(paths, in_zone, see))
    except OSError as error:
        raise Refused(CREATE, "mounts", f"volumes of the kubelet: {error.strerror or error}") from error


def find(paths: Sequence[str], in_zone: Sequence[str], see: See) -> Mapping[str, EmptyDirSource]:
    """The paths whose volumes live in the zone; Unsupported for volumes of huge pages.

    ``in_zone``: as ``Sandbox.in_zone``.
    """
    found = {path: _place(path, see) for path in paths if _is_known(path)}
    return {
        path: source
        for path, source in found.items()
        if source and (not source.on_disk or EMPTY_DIR in in_zone)
    }


def _is_known(path: str) -> bool:
    return bool(_WHOLE.fullmatch(path) or _PART.fullmatch(path))


def _place(path: str, see: See) -> EmptyDirSource | None:
    here = see(path)
    if here is None:
        return None
    if here.kind == "hugetlbfs":
        raise Unsupported(CREATE, f"mount of {path!r:.200}", "huge pages of the host are no zone's")
    if whole := _WHOLE.fullmatch(path):
        return _empty_dir(whole["volume"], here)
    part = _PART.fullmatch(path)
    assert part is not None
    root = see(f"{part['pod']}/volumes/kubernetes.io~empty-dir/{part['volume']}")
    if root is None or (below := _below(here, root)) is None:
        return None
    return _empty_dir(part["volume"], root, below)


def _empty_dir(volume: str, root: SeenPath, sub_path: str = "") -> EmptyDirSource | None:
    if root.kind not in LOCAL or not stat.S_ISDIR(root.mode):
        return None
    in_memory = root.kind == "tmpfs" and root.root == "/"
    return EmptyDirSource(volume, not in_memory, root, sub_path)


def _below(part: SeenPath, root: SeenPath) -> str | None:
    """The path of a part in the volume at ``root``; None when it is not in it."""
    if part.device != root.device:
        return None
    if part.root == root.root:
        return ""
    top = root.root.rstrip("/") + "/"
    return part.root.removeprefix(top) if part.root.startswith(top) else None


def see(path: str) -> SeenPath | None:
    """Look at a path of this host; a symbolic link at its end is nothing.  May wait for its file system."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        known = mountinfo.mounts()
        mount = known.get(mountinfo.number_of(descriptor))
        status = os.fstat(descriptor)
        if mount is None or stat.S_ISLNK(status.st_mode):
            return None
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        size = os.statvfs(descriptor)
    finally:
        os.close(descriptor)
    root = os.path.normpath(os.path.join(mount.root, os.path.relpath(name, mount.place)))
    return SeenPath(
        mount.kind,
        mount.device,
        root,
        status.st_mode,
        status.st_uid,
        status.st_gid,
        size.f_blocks * size.f_frsize,
    )
