"""The kubelet's paths of files that the pod's zone has itself or as a copy, and does not share with the host.

Each kind has a name below the kubelet's root (kubernetes/pkg/volume/util, kubelet_getters.go):

- ``<root>/pods/<uid>/volumes/kubernetes.io~empty-dir/<volume>``: an emptyDir;
- ``<root>/pods/<uid>/volumes/kubernetes.io~{configmap,secret,downward-api,projected}/<volume>``: small files,
  as an AtomicWriter makes them;
- ``<root>/pods/<uid>/volume-subpaths/<volume>/<container>/<number>``: a bind mount of a part of a volume,
  for a subPath;
- ``<root>/pods/<uid>/etc-hosts``: the pod's /etc/hosts; the kubelet writes the file anew for each container;
- ``<root>/pods/<uid>/containers/<container>/<8 hexadecimal digits>``: a container's termination message;
  the kubelet reads the file when the container has ended.

An emptyDir of medium Memory has a tmpfs; an emptyDir on disk is in the file system of the kubelet's root.
The file systems of a part and of a volume tell to which volume the part belongs.

Only termination messages are written on the host.  The uid in the path must therefore be the pod sandbox's:
otherwise a volume (hostPath) could name the file of another pod.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cri.checks.fields import CREATE
from cri.state.sandbox import EMPTY_DIR, SMALL_FILES
from daemonkit.faults import Refused, Unsupported
from daemonkit.host import mountinfo
from daemonkit.host.host_calls import HostCalls

_POD = r"(?P<pod>/(?:[^/]+/)*pods/[^/]+)"
_EMPTY_DIR = re.compile(_POD + r"/volumes/kubernetes\.io~empty-dir/(?P<volume>[^/]+)")
_PLUGINS = ("configmap", "downward-api", "projected", "secret")
_FILES = re.compile(_POD + rf"/volumes/kubernetes\.io~(?:{'|'.join(_PLUGINS)})/(?P<volume>[^/]+)")
_PART = re.compile(_POD + r"/volume-subpaths/(?P<volume>[^/]+)/[^/]+/[0-9]+")
_HOSTS = re.compile(_POD + r"/etc-hosts")
_MESSAGE = re.compile(r"(?P<root>/(?:[^/]+/)*)pods/(?P<uid>[^/]+)/containers/[^/]+/[0-9a-f]{8}")
_MESSAGE_BYTES = 4096
"""Bytes that the kubelet reads from the end of a message (MaxContainerTerminationMessageLength)."""
_OF_HOSTS = ".etc-hosts"
"""The zone's name for /etc/hosts; volumes cannot have this name."""
_CALLS = HostCalls()


@dataclass(frozen=True, slots=True)
class SeenPath:
    """A file by path: kind and device of its file system, path in the file system, mode and owner.

    ``size_bytes``: size of the file system.
    """

    kind: str
    device: str
    root: str
    mode: int
    uid: int
    gid: int
    size_bytes: int


See = Callable[[str], SeenPath | None]
"""None: no file."""


@dataclass(frozen=True, slots=True)
class EmptyDirSource:
    """An emptyDir and a part of it; ``seen``: the emptyDir's root on the host."""

    volume: str
    on_disk: bool
    seen: SeenPath
    sub_path: str = ""


@dataclass(frozen=True, slots=True)
class KubeletFiles:
    """Small files to copy.

    ``volume``: the zone's name for the copy; "": a copy for each container.  ``writable``: containers may
    change the copy.  ``return_bytes``: bytes that the kubelet reads back from a writable file; the file is
    below the directory ``beneath``, without a symbolic link in between.
    """

    volume: str = ""
    keep_current: bool = False
    writable: bool = False
    return_bytes: int = 0
    beneath: str = ""


Source = EmptyDirSource | KubeletFiles


async def look_up_sources(
    sandbox_id: str, pod_uid: str, paths: Sequence[str], in_zone: Sequence[str]
) -> Mapping[str, Source]:
    """``find_sources`` on this host.  Refused if a file system does not answer."""
    if not any(_is_looked_at(path) for path in paths):
        return find_sources(pod_uid, paths, in_zone, lambda _: None)
    try:
        return await _CALLS.run(sandbox_id, lambda: find_sources(pod_uid, paths, in_zone, see))
    except OSError as error:
        raise Refused(CREATE, "mounts", f"volumes of the kubelet: {error.strerror or error}") from error


def find_sources(
    pod_uid: str, paths: Sequence[str], in_zone: Sequence[str], see: See
) -> Mapping[str, Source]:
    """Files in the zone or copied into the zone, by path; Unsupported for volumes of huge pages.

    ``in_zone``: as ``Sandbox.in_zone``.
    """
    found = {path: _source(pod_uid, path, see) for path in paths}
    return {path: source for path, source in found.items() if source and _is_in_zone(source, in_zone)}


def _is_in_zone(source: Source, in_zone: Sequence[str]) -> bool:
    if isinstance(source, EmptyDirSource):
        return not source.on_disk or EMPTY_DIR in in_zone
    return SMALL_FILES in in_zone


def _is_looked_at(path: str) -> bool:
    return bool(_EMPTY_DIR.fullmatch(path) or _PART.fullmatch(path))


def _source(pod_uid: str, path: str, see: See) -> Source | None:
    if files := _FILES.fullmatch(path):
        return KubeletFiles(files["volume"], keep_current=True)
    if _HOSTS.fullmatch(path):
        return KubeletFiles(_OF_HOSTS, keep_current=True, writable=True)
    if message := _MESSAGE.fullmatch(path):
        if message["uid"] != pod_uid:
            return KubeletFiles()
        return KubeletFiles(writable=True, return_bytes=_MESSAGE_BYTES, beneath=message["root"])
    return _looked_at(path, see) if _is_looked_at(path) else None


def _looked_at(path: str, see: See) -> Source | None:
    here = see(path)
    if here is None:
        return None
    if here.kind == "hugetlbfs":
        raise Unsupported(CREATE, f"mount of {path!r:.200}", "huge pages of the host are no zone's")
    if whole := _EMPTY_DIR.fullmatch(path):
        return _empty_dir(whole["volume"], here)
    part = _PART.fullmatch(path)
    assert part is not None
    volumes, volume = f"{part['pod']}/volumes/kubernetes.io~", part["volume"]
    root = see(f"{volumes}empty-dir/{volume}")
    if root is not None and (below := _below(here, root)) is not None:
        return _empty_dir(volume, root, below)
    roots = (see(f"{volumes}{plugin}/{volume}") for plugin in _PLUGINS)
    if any(root is not None and _below(here, root) is not None for root in roots):
        return KubeletFiles()
    return None


def _empty_dir(volume: str, root: SeenPath, sub_path: str = "") -> EmptyDirSource | None:
    if root.kind not in mountinfo.LOCAL or not stat.S_ISDIR(root.mode):
        return None
    in_memory = root.kind == "tmpfs" and root.root == "/"
    return EmptyDirSource(volume, not in_memory, root, sub_path)


def _below(part: SeenPath, root: SeenPath) -> str | None:
    """The path of a part in the volume at ``root``; None if the part is outside."""
    if part.device != root.device:
        return None
    if part.root == root.root:
        return ""
    top = root.root.rstrip("/") + "/"
    return part.root.removeprefix(top) if part.root.startswith(top) else None


def see(path: str) -> SeenPath | None:
    """Look at a path of this host, without following a last symbolic link.  May wait for the file system."""
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
