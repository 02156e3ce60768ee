"""emptyDir volumes of medium Memory, told by the kubelet's paths and the host's mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from cri.container import volumes
from cri.container.memory_volumes import MemoryVolumeSource, find
from daemonkit.faults import Refused, Unsupported
from xenpod_proto.cri.v1 import runtime_pb2 as cri

POD = "/var/lib/kubelet/pods/1-2-3"
WHOLE = f"{POD}/volumes/kubernetes.io~empty-dir/cache"
MOUNTS = f"""\
22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
40 22 0:50 / {WHOLE} rw,relatime shared:2 - tmpfs tmpfs rw,size=65536k
41 22 0:50 /a/b {POD}/volume-subpaths/cache/web/0 rw - tmpfs tmpfs rw,size=65536k
42 22 0:51 / {POD}/volumes/kubernetes.io~empty-dir/huge rw - hugetlbfs nodev rw
43 22 0:52 / {POD}/volumes/kubernetes.io~secret/token rw - tmpfs tmpfs rw
44 22 0:52 / {POD}/volume-subpaths/token/web/0 rw - tmpfs tmpfs rw
45 22 8:1 /x {POD}/volumes/kubernetes.io~empty-dir/disk rw - ext4 /dev/sda1 rw
46 22 0:53 / {POD}/volumes/kubernetes.io~empty-dir/over rw - tmpfs tmpfs rw
47 46 8:1 /y {POD}/volumes/kubernetes.io~empty-dir/over rw - ext4 /dev/sda1 rw
48 22 0:54 /with\\040blank {POD}/volume-subpaths/blank/web/1 rw - tmpfs tmpfs rw
49 22 0:54 / {POD}/volumes/kubernetes.io~empty-dir/blank rw - tmpfs tmpfs rw
50 22 0:55 /z {POD}/volume-subpaths/cache/web/7 rw - tmpfs tmpfs rw
"""


@pytest.fixture
def mountinfo(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS)
    return path


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (WHOLE, MemoryVolumeSource("cache", Path(WHOLE))),
        (f"{POD}/volume-subpaths/cache/web/0", MemoryVolumeSource("cache", Path(WHOLE), "a/b")),
        (
            f"{POD}/volume-subpaths/blank/web/1",
            MemoryVolumeSource("blank", Path(f"{POD}/volumes/kubernetes.io~empty-dir/blank"), "with blank"),
        ),
    ],
)
def test_what_is_the_zones_memory(mountinfo: Path, path: str, place: MemoryVolumeSource) -> None:
    assert find([path, "/etc"], mountinfo) == {path: place}


@pytest.mark.parametrize(
    "path",
    [
        f"{POD}/volumes/kubernetes.io~empty-dir/disk",
        f"{POD}/volumes/kubernetes.io~empty-dir/over",
        f"{POD}/volumes/kubernetes.io~empty-dir/not-mounted",
        f"{POD}/volumes/kubernetes.io~secret/token",
        f"{POD}/volume-subpaths/token/web/0",
        f"{POD}/volume-subpaths/cache/web/7",
        f"{WHOLE}/below",
        "/",
        "/var/lib/kubelet",
    ],
)
def test_what_stays_the_hosts(mountinfo: Path, path: str) -> None:
    assert find([path], mountinfo) == {}


def test_the_mounts_of_the_host_are_read_only_when_there_is_need(tmp_path: Path) -> None:
    assert find(["/etc", "/srv"], tmp_path / "nowhere") == {}


def test_huge_pages_are_refused(mountinfo: Path) -> None:
    with pytest.raises(Unsupported, match="huge pages"):
        find([f"{POD}/volumes/kubernetes.io~empty-dir/huge"], mountinfo)


def test_a_memory_volume_that_is_gone_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = MemoryVolumeSource("cache", tmp_path / "gone")
    monkeypatch.setattr(volumes, "find", lambda paths: dict.fromkeys(paths, source))
    with pytest.raises(Refused, match="No such file"):
        volumes.plan("c1", [cri.Mount(container_path="/cache", host_path=str(tmp_path / "gone"))])
