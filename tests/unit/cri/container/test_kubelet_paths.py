"""Volumes inside the zone, recognized by the kubelet's paths and their file systems."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest

from cri.container.kubelet_paths import (
    EmptyDirSource,
    KubeletFiles,
    SeenPath,
    find_sources,
    look_up_sources,
    see,
)
from cri.container.volumes import plan_volumes
from cri.state.sandbox import EMPTY_DIR, SMALL_FILES
from daemonkit.faults import Unsupported
from daemonkit.host.mountinfo import mounts
from xenpod_proto.cri.v1 import runtime_pb2 as cri

POD = "/var/lib/kubelet/pods/1-2-3"
VOLUMES = f"{POD}/volumes/kubernetes.io~empty-dir"
PARTS = f"{POD}/volume-subpaths"
DIRECTORY = stat.S_IFDIR | 0o2777


def seen(kind: str, device: str, root: str, mode: int = DIRECTORY) -> SeenPath:
    return SeenPath(kind, device, root, mode, 7, 8, 64 << 20)


HOST: Mapping[str, SeenPath] = {
    f"{VOLUMES}/cache": seen("tmpfs", "0:50", "/"),
    f"{PARTS}/cache/web/0": seen("tmpfs", "0:50", "/a/b"),
    f"{PARTS}/cache/web/7": seen("tmpfs", "0:55", "/z"),
    f"{VOLUMES}/blank": seen("tmpfs", "0:54", "/"),
    f"{PARTS}/blank/web/1": seen("tmpfs", "0:54", "/with blank"),
    f"{VOLUMES}/huge": seen("hugetlbfs", "0:51", "/"),
    f"{VOLUMES}/disk": seen("ext4", "8:1", f"{VOLUMES}/disk"),
    f"{PARTS}/disk/web/0": seen("ext4", "8:1", f"{VOLUMES}/disk/x/y"),
    f"{PARTS}/disk/web/1": seen("ext4", "8:1", f"{VOLUMES}/disk"),
    f"{PARTS}/disk/web/2": seen("ext4", "8:1", f"{VOLUMES}/diskette/x"),
    f"{PARTS}/disk/web/3": seen("ext4", "8:2", f"{VOLUMES}/disk/x"),
    f"{PARTS}/claim/web/0": seen("ext4", "8:3", "/x"),
    f"{VOLUMES}/on-tmpfs": seen("tmpfs", "0:9", f"{VOLUMES}/on-tmpfs"),
    f"{VOLUMES}/nfs": seen("nfs4", "0:60", "/export"),
    f"{VOLUMES}/fuse": seen("fuse.sshfs", "0:61", "/"),
    f"{VOLUMES}/file": seen("ext4", "8:1", f"{VOLUMES}/file", stat.S_IFREG | 0o644),
    f"{POD}/volumes/kubernetes.io~secret/token": seen("tmpfs", "0:52", "/"),
    f"{PARTS}/token/web/0": seen("tmpfs", "0:52", "/"),
    f"{VOLUMES}/cache/below": seen("tmpfs", "0:50", "/below"),
}


def found(path: str, *in_zone: str) -> EmptyDirSource | KubeletFiles | None:
    return find_sources("1-2-3", [path, "/etc"], in_zone, HOST.get).get(path)


@pytest.mark.parametrize(
    ("path", "volume", "sub_path"),
    [
        (f"{VOLUMES}/cache", "cache", ""),
        (f"{PARTS}/cache/web/0", "cache", "a/b"),
        (f"{PARTS}/blank/web/1", "blank", "with blank"),
    ],
)
def test_volumes_in_memory_are_recognized(path: str, volume: str, sub_path: str) -> None:
    root = HOST[f"{VOLUMES}/{volume}"]
    for in_zone in ((), (EMPTY_DIR,)):
        assert found(path, *in_zone) == EmptyDirSource(volume, False, root, sub_path)


@pytest.mark.parametrize(
    ("path", "volume", "sub_path"),
    [
        (f"{VOLUMES}/disk", "disk", ""),
        (f"{PARTS}/disk/web/0", "disk", "x/y"),
        (f"{PARTS}/disk/web/1", "disk", ""),
        (f"{VOLUMES}/on-tmpfs", "on-tmpfs", ""),
    ],
)
def test_volumes_on_disk_are_recognized(path: str, volume: str, sub_path: str) -> None:
    assert found(path, EMPTY_DIR) == EmptyDirSource(volume, True, HOST[f"{VOLUMES}/{volume}"], sub_path)
    assert found(path) is None, "as it was when the pod was made"


@pytest.mark.parametrize(
    "path",
    [
        f"{VOLUMES}/missing",
        f"{VOLUMES}/nfs",
        f"{VOLUMES}/fuse",
        f"{VOLUMES}/file",
        f"{POD}/volumes/kubernetes.io~secret/token",
        f"{PARTS}/token/web/0",
        f"{PARTS}/claim/web/0",
        f"{PARTS}/cache/web/7",
        f"{PARTS}/disk/web/2",
        f"{PARTS}/disk/web/3",
        f"{VOLUMES}/cache/below",
        "/",
        "/var/lib/kubelet",
    ],
)
def test_volume_stays_on_the_host(path: str) -> None:
    assert found(path, EMPTY_DIR) is None


def test_huge_pages_are_refused() -> None:
    with pytest.raises(Unsupported, match="huge pages"):
        found(f"{VOLUMES}/huge")


async def test_other_paths_are_not_looked_at() -> None:
    assert await look_up_sources("s", "1-2-3", ["/nowhere", f"{VOLUMES}/cache/below"], [EMPTY_DIR]) == {}


async def test_empty_dir_in_the_zone_has_the_mode_and_owner_of_the_hosts(tmp_path: Path) -> None:
    """The zone's emptyDir gets the mode and owner that the kubelet gave the emptyDir on disk."""
    volume = tmp_path / "pods/u-1/volumes/kubernetes.io~empty-dir/scratch"
    volume.mkdir(parents=True)
    volume.chmod(0o2770)
    (volume.parent / "link").symlink_to(volume)
    found = await look_up_sources("s", "u-1", [str(volume), str(volume.parent / "link")], [EMPTY_DIR])
    source = found[str(volume)]
    assert isinstance(source, EmptyDirSource)
    assert found.keys() == {str(volume)} and source.on_disk
    assert stat.S_IMODE(source.seen.mode) == 0o2770 and source.seen.uid == os.getuid()
    assert see(str(volume / "missing")) is None and see("/etc/passwd/x") is None
    kept = {mount.place: mount for mount in mounts().values()}["/proc"]
    of_proc = see("/proc/sys/kernel")
    assert of_proc is not None and (of_proc.kind, of_proc.device, of_proc.root) == (
        "proc",
        kept.device,
        "/sys/kernel",
    )


def test_empty_dirs_in_the_zone_have_sizes_modes_and_sub_paths() -> None:
    """In memory: the kubelet's size. On disk: the handler's size."""
    asked = [
        cri.Mount(container_path="/a", host_path=f"{VOLUMES}/cache"),
        cri.Mount(container_path="/b", host_path=f"{PARTS}/disk/web/0"),
        cri.Mount(container_path="/c", host_path="/srv"),
    ]
    in_zone = find_sources("1-2-3", [mount.host_path for mount in asked], [EMPTY_DIR], HOST.get)
    planned = plan_volumes("c1", asked, in_zone=in_zone, empty_dir_size=5 << 20)
    assert [bind["source"] for bind in planned.mounts] == [
        "/run/xenpod/containers/c1/volumes/0",
        "/run/xenpod/containers/c1/volumes/1",
        "/run/xenpod/shared/c1/2",
    ]
    assert [volume.name for volume in planned.shared] == ["2"]
    assert [(each.volume, each.size_bytes, each.sub_path) for each in planned.memory] == [
        ("cache", 64 << 20, ""),
        ("disk", 5 << 20, "x/y"),
    ]
    assert {(each.mode, each.uid, each.gid) for each in planned.memory} == {(0o2777, 7, 8)}


MESSAGE = f"{POD}/containers/web/0123abcd"


@pytest.mark.parametrize("readonly", [False, True])
def test_only_a_writable_termination_message_is_returned(readonly: bool) -> None:
    asked = cri.Mount(container_path="/m", host_path=MESSAGE, readonly=readonly)
    planned = plan_volumes("c1", [asked], in_zone=find_sources("1-2-3", [MESSAGE], [SMALL_FILES], HOST.get))
    (volume,) = planned.files
    expected = (False, 0, "") if readonly else (True, 4096, "/var/lib/kubelet/")
    assert (volume.writable, volume.return_bytes, volume.beneath) == expected


@pytest.mark.parametrize(
    ("pod_uid", "path"),
    [
        ("another", MESSAGE),
        ("", MESSAGE),
        ("containers", MESSAGE),
        ("1-2-3", f"{POD}/containers/pods/other/containers/web/0123abcd"),
        ("1-2-3", f"{POD}/containers/0123abcd"),
        ("1-2-3", f"{POD}/containers/web/0123abcdef"),
    ],
)
def test_only_the_own_pods_termination_message_is_returned(pod_uid: str, path: str) -> None:
    found = find_sources(pod_uid, [path], [SMALL_FILES], HOST.get)
    planned = plan_volumes("c1", [cri.Mount(container_path="/m", host_path=path)], in_zone=found)
    assert planned.files == () and [volume.host_path for volume in planned.shared] == [path]
