"""Volumes over protect.v1: the containers' view of the host, the host's view of them, and remains."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from protect.host import mounts
from tests.support.images import busybox
from tests.support.protect.disk_source import DiskSource
from tests.support.protect.zones import Zones, failing, needs_protectd
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, needs_protectd, pytest.mark.asyncio(loop_scope="module")]
Code = grpc.StatusCode


@pytest_asyncio.fixture(loop_scope="module")
async def zones(shared_zones: Zones) -> Zones:
    await shared_zones.create_zone()
    return shared_zones


def volume(path: Path | str, name: str = "0", **more: bool) -> pb.Volume:
    return pb.Volume(name=name, host_path=str(path), **more)


async def started(
    zones: Zones, *volumes: pb.Volume, workload: str = "w1", options: tuple[str, ...] = ("rprivate", "rw")
) -> None:
    """A workload that sleeps, each volume at /v<name>."""
    binds = [
        busybox.bind(f"/run/xenpod/shared/{workload}/{each.name}", f"/v{each.name}", "rbind", *options)
        for each in volumes
    ]
    config = busybox.config(
        workload, ["/bin/sleep", "1000"], mounts=binds, follows=any(each.follow_host for each in volumes)
    )
    await zones.run(workload_id=workload, oci_config=config, volumes=volumes)


async def sh(zones: Zones, script: str, workload: str = "w1") -> tuple[int, str]:
    stdout, stderr, code = await zones.exec("/bin/sh", "-c", script, workload_id=workload)
    return code, (stdout + stderr).decode()


async def test_directories_and_files_both_ways(zones: Zones, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_text("from the host\n")
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n")
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "file-link").symlink_to(tmp_path / "hosts")
    await started(
        zones,
        volume(folder),
        volume(tmp_path / "hosts", "1"),
        volume(tmp_path / "link", "2"),
        volume(tmp_path / "file-link", "3"),
    )
    assert await sh(zones, "cat /v0/a /v1 /v2/a /v3") == (
        0,
        "from the host\n127.0.0.1 localhost\nfrom the host\n127.0.0.1 localhost\n",
    )
    assert await sh(zones, "echo back > /v0/b; echo more >> /v1; mkdir -p /v2/deep/er; echo end >> /v3") == (
        0,
        "",
    )
    assert (folder / "b").read_text() == "back\n" and (folder / "deep/er").is_dir()
    assert (tmp_path / "hosts").read_text() == "127.0.0.1 localhost\nmore\nend\n"
    # A new target of the link does not matter to a running workload with the old target.
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("/")
    assert (await sh(zones, "cat /v2/a"))[1] == "from the host\n"


async def test_readonly_volume_refuses_writes_whatever_the_options(zones: Zones, tmp_path: Path) -> None:
    (tmp_path / "folder/below").mkdir(parents=True)
    mounts.tmpfs(tmp_path / "folder/below", "size=64k")
    try:
        await started(zones, volume(tmp_path / "folder", readonly=True), options=("rprivate", "ro"))
        code, said = await sh(zones, "echo no > /v0/a")
        assert code != 0 and "Read-only" in said
        # Mount options of the workload do not open a mount that the host holds read-only below.
        for workload, options in (("w2", ("rslave", "ro")), ("w3", ("rprivate", "rro"))):
            both = volume(tmp_path / "folder", readonly=True)
            await started(zones, both, workload=workload, options=options)
            for place in ("/v0/a", "/v0/below/b"):
                code, said = await sh(zones, f"echo no > {place}", workload)
                assert code != 0 and "Read-only" in said
        assert not os.listdir(tmp_path / "folder/below")
    finally:
        while mounts.unmount(tmp_path / "folder/below"):
            pass


async def test_mounts_of_the_host_are_followed_or_not(
    zones: Zones, tmp_path: Path, source: DiskSource
) -> None:
    mounts.propagate(source.path, mounts.MS_SHARED)
    later = source.path / "later"
    later.mkdir()
    await started(zones, volume(source.path, follow_host=True), options=("rslave", "rw"))
    await started(zones, volume(source.path), workload="w2")
    mounts.tmpfs(later, "size=64k")
    (later / "news").write_text("mounted\n")
    seen = "until test -e /v0/later/news; do :; done; cat /v0/later/news"
    assert await sh(zones, seen) == (0, "mounted\n")
    assert (await sh(zones, "cat /v0/later/news", "w2"))[0] != 0
    assert mounts.unmount(later)
    assert await sh(zones, "while test -e /v0/later/news; do :; done") == (0, "")
    await sh(zones, "mount -t tmpfs none /v0/later && echo > /v0/later/inner")
    assert not os.listdir(later), "what is mounted in a zone is not the host's"
    plain = tmp_path / "plain"
    plain.mkdir()
    tree = mounts.clone(plain, recursive=False)
    mounts.change(tree, propagation=mounts.MS_PRIVATE, recursive=False)
    mounts.attach_tree(tree, plain)
    os.close(tree)
    try:
        async with failing(Code.FAILED_PRECONDITION) as said:
            await started(zones, volume(plain, follow_host=True), workload="w3")
        assert "make-rshared" in said[0]
    finally:
        mounts.unmount(plain)


async def test_unsuitable_host_path_is_refused(zones: Zones, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "s"))
    (tmp_path / "nowhere").symlink_to("missing")
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "file").touch()
    refused = [
        (volume(tmp_path / "missing"), Code.NOT_FOUND, "no such"),
        (volume(tmp_path / "nowhere", create_directory=True), Code.FAILED_PRECONDITION, "symbolic link"),
        (volume(tmp_path / "round"), Code.INVALID_ARGUMENT, "symbolic links"),
        (volume(tmp_path / "file/x"), Code.INVALID_ARGUMENT, "ot a directory"),
        (volume(tmp_path / "s"), Code.FAILED_PRECONDITION, "a socket"),
        (volume(tmp_path / "pipe"), Code.FAILED_PRECONDITION, "a pipe"),
        (volume("/dev/null"), Code.FAILED_PRECONDITION, "a device"),
        (volume("/etc/../etc"), Code.INVALID_ARGUMENT, ".."),
        (volume("relative"), Code.INVALID_ARGUMENT, "absolute"),
        (volume(tmp_path, "a/b"), Code.INVALID_ARGUMENT, "file name"),
        (volume(zones.protectd.run_dir / "volumes/z1"), Code.FAILED_PRECONDITION, "bound"),
    ]
    try:
        for asked, code, words in refused:
            async with failing(code) as said:
                await zones.create(["/bin/true"], volumes=[volume("/etc", "fine"), asked])
            assert words in said[0]
        for many in ([volume("/etc")] * 2, [volume("/etc", str(number)) for number in range(257)]):
            async with failing(Code.INVALID_ARGUMENT):
                await zones.create(["/bin/true"], volumes=many)
    finally:
        listening.close()
    assert not os.listdir(zones.protectd.run_dir / "volumes/z1/places")
    await started(zones, volume(tmp_path / "made/deep", create_directory=True))
    assert (tmp_path / "made/deep").stat().st_mode & 0o7777 == 0o755


async def test_host_can_unmount_a_shared_directory(zones: Zones, source: DiskSource) -> None:
    """During the workload a mount point can be removed; after the workload nobody holds the disk."""
    below = source.path / "below"
    below.mkdir()
    mounts.tmpfs(below, "size=64k")
    await started(zones, volume(source.path))
    assert mounts.unmount(below)
    below.rmdir()
    await zones.signal(9)
    await zones.wait()
    await source.freed()
    assert not os.listdir(zones.protectd.run_dir / "volumes/z1/places")


@pytest.mark.parametrize("end", ["delete", "destroy", "crash"])
async def test_every_end_lets_go(zones: Zones, source: DiskSource, end: str) -> None:
    await started(zones, volume(source.path))
    if end == "delete":
        await zones.delete()
    elif end == "destroy":
        await zones.destroy_zone()
        assert not (zones.protectd.run_dir / "volumes/z1").exists()
    else:
        zone = (await zones.clients.zones.GetZone(pb.GetZoneRequest(id="z1"))).domain_id
        os.kill(zone, 9)
        assert (await zones.wait()).reason == "ZoneDestroyed"
    await source.freed()


async def test_fifty_volumes_each_show_their_file(zones: Zones, tmp_path: Path) -> None:
    folders = [tmp_path / f"many/{number}" for number in range(50)]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{folder.name}\n")
    await started(zones, *(volume(folder, folder.name) for folder in folders))
    script = "i=0; while [ $i -lt 50 ]; do cat /v$i/name; i=$((i+1)); done"
    assert (await sh(zones, script))[1] == "".join(f"{number}\n" for number in range(50))


async def test_volume_with_the_zones_area_below(zones: Zones) -> None:
    """The area of zones is in no copy of the tree around it: volumes would be in volumes without end."""
    await started(zones, volume(zones.folder))
    await started(zones, volume(zones.folder, follow_host=False), volume("/etc", "1"), workload="w2")
    at = zones.protectd.run_dir.relative_to(zones.folder)
    for workload in ("w1", "w2"):
        assert await sh(zones, f"ls /v0/{at}/volumes/z1", workload) == (0, "")


async def test_volumes_work_after_a_crash_of_protectd(zones: Zones, source: DiskSource) -> None:
    (source.path / "a").write_text("1")
    await started(zones, volume(source.path))
    await zones.protectd.daemon.crash()
    await zones.protectd.daemon.start()
    assert await sh(zones, "cat /v0/a") == (0, "1")
    await started(zones, volume(source.path), workload="w2")
    assert await sh(zones, "cat /v0/a", "w2") == (0, "1")
    await asyncio.gather(zones.delete("w1"), zones.delete("w2"))
    await source.freed()


async def test_area_on_a_host_with_shared_mounts_leaves_no_mount(zones: Zones, tmp_path: Path) -> None:
    """As on a host that systemd has booted: no mount comes back to the host, or stays."""
    # A mount below another directory goes with the directory, as other tests remove theirs.
    program = (
        "mount -t tmpfs none /mnt && mount --make-rshared /mnt && grep -c /mnt /proc/self/mountinfo && "
        f"{sys.executable} -c 'from pathlib import Path; from protect.volumes.area import Area\n"
        'a = Area(Path("/mnt/run/z")); a.make(); a.remove(); a.make(); a.remove()\' && '
        "grep -c /mnt /proc/self/mountinfo"
    )
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    before, after = done.stdout.split()
    assert before == after
