"""emptyDir volumes of medium Memory: a tmpfs in the zone stands in for the one that the kubelet makes.

They are known by the kubelet's paths below its root (kubernetes/pkg/volume/util, kubelet_getters.go):
``<root>/pods/<uid>/volumes/kubernetes.io~empty-dir/<volume>`` and, for a subPath,
``<root>/pods/<uid>/volume-subpaths/<volume>/<container>/<number>``, a bind mount of a part of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cri.checks.fields import CREATE
from daemonkit.faults import Unsupported
from daemonkit.host.mountinfo import Mount, read
from xenpod_proto.protect.v1 import protect_pb2 as pb

_POD = r"(?P<pod>/(?:[^/]+/)*pods/[^/]+)"
_WHOLE = re.compile(_POD + r"/volumes/kubernetes\.io~empty-dir/(?P<volume>[^/]+)")
_PART = re.compile(_POD + r"/volume-subpaths/(?P<volume>[^/]+)/[^/]+/[0-9]+")


@dataclass(frozen=True, slots=True)
class MemoryVolumeSource:
    """A memory volume on the host, and the part of it that is meant."""

    volume: str
    root: Path
    sub_path: str = ""


def find(
    host_paths: list[str], mountinfo: Path = Path("/proc/self/mountinfo")
) -> Mapping[str, MemoryVolumeSource]:
    """Find the paths that are memory volumes, or parts of one.  Unsupported: volumes of huge pages."""
    wanted = [path for path in host_paths if _WHOLE.fullmatch(path) or _PART.fullmatch(path)]
    if not wanted:
        return {}
    mounted = {each.place: each for each in read(mountinfo)}  # the last one at a place is on top
    found = {path: _place(path, mounted) for path in wanted}
    return {path: place for path, place in found.items() if place}


def message(name: str, place: MemoryVolumeSource) -> pb.MemoryVolume:
    """A volume with the size, owner and mode that the kubelet gave the host's.  OSError when that is gone."""
    top, seen = os.statvfs(place.root), os.stat(place.root)
    return pb.MemoryVolume(
        name=name,
        volume=place.volume,
        size_bytes=top.f_blocks * top.f_frsize,
        mode=seen.st_mode & 0o7777,
        uid=seen.st_uid,
        gid=seen.st_gid,
        sub_path=place.sub_path,
    )


def _place(path: str, mounted: Mapping[str, Mount]) -> MemoryVolumeSource | None:
    here = mounted.get(path)
    if here is not None and here.kind == "hugetlbfs":
        raise Unsupported(CREATE, f"mount of {path!r:.200}", "huge pages of the host are no zone's")
    if here is None or here.kind != "tmpfs":
        return None
    if whole := _WHOLE.fullmatch(path):
        return MemoryVolumeSource(whole["volume"], Path(path))
    part = _PART.fullmatch(path)
    assert part is not None
    root = f"{part['pod']}/volumes/kubernetes.io~empty-dir/{part['volume']}"
    above = mounted.get(root)
    if above is None or above.device != here.device or above.kind != "tmpfs":
        return None
    return MemoryVolumeSource(part["volume"], Path(root), here.root.strip("/"))
