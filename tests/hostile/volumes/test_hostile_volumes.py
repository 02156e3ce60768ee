"""Volumes as a way to the host: mounts below them, their file systems, later mounts."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from protect.host import mounts, mountspace
from tests.support.images import busybox
from tests.support.protect.disk_source import DiskSource
from tests.support.protect.silent_server import SilentServer
from tests.support.protect.zones import Zones, failing, needs_protectd
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, needs_protectd, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module")
async def zone(shared_zones: Zones) -> Zones:
    await shared_zones.create_zone()
    return shared_zones


@pytest.fixture
def below(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own in ``tmp_path / "top"``."""
    place = tmp_path / "top/below"
    place.mkdir(parents=True)
    mounts.tmpfs(place, "size=64k")
    yield place
    while mounts.unmount(place):
        pass


async def _started(zones: Zones, *volumes: pb.Volume) -> None:
    """A workload with the volumes at /v0, /v1, ...; its own kernel adds no restriction."""
    binds = [
        busybox.bind(
            f"/run/xenpod/shared/w1/{each.name}",
            f"/v{number}",
            "rbind",
            "rslave",
            "ro" if each.readonly else "rw",
        )
        for number, each in enumerate(volumes)
    ]
    config = busybox.config("w1", ["/bin/sleep", "1000"], mounts=binds, follows=True)
    await zones.run(workload_id="w1", oci_config=config, volumes=volumes)


async def _sh(zones: Zones, script: str) -> tuple[int, str]:
    stdout, stderr, code = await zones.exec("/bin/sh", "-c", script, workload_id="w1")
    return code, (stdout + stderr).decode()


def _volume(path: Path | str, *, name: str = "v", readonly: bool = True, follow: bool = False) -> pb.Volume:
    return pb.Volume(name=name, host_path=str(path), readonly=readonly, follow_host=follow)


async def test_mount_below_a_read_only_volume_is_read_only(zone: Zones, below: Path) -> None:
    (below / "host").write_text("the host's")
    await _started(zone, _volume(below.parent))
    for way in ("echo > /v0/below/new", "echo > /v0/below/host", "rm /v0/below/host", "chmod 0 /v0/below"):
        code, said = await _sh(zone, way)
        assert code != 0 and "Read-only" in said, way
    assert (below / "host").read_text() == "the host's"


@pytest.fixture
def later(source: DiskSource) -> Iterator[Path]:
    """An empty directory in a shared mount, which is unmounted in the end."""
    mounts.propagate(source.path, mounts.MS_SHARED)
    place = source.path / "later"
    place.mkdir()
    yield place
    while mounts.unmount(place):
        pass


async def _seen(zones: Zones, path: str, *, there: bool = True) -> None:
    """Wait in the zone until a path appears; no event exists."""
    code, said = await _sh(zones, f"while {'!' if there else ''} test -e {path}; do sleep 0.02; done")
    assert code == 0, said


def _mountinfo(zones: Zones) -> str:
    """The mounts that the zone shares with the host."""
    listed = mountspace.listing(zones.protectd.run_dir / "volumes/z1/namespace")
    try:
        return os.pread(listed, 1 << 16, 0).decode()
    finally:
        os.close(listed)


async def _gone(zones: Zones, path: str) -> None:
    await _seen(zones, path, there=False)


async def test_later_mount_below_a_read_only_volume_is_seen_and_cannot_be_written(
    zone: Zones, later: Path
) -> None:
    await _started(zone, _volume(later.parent, follow=True))
    mounts.tmpfs(later, "size=64k")
    (later / "host").write_text("the host's")
    (later / "deeper").mkdir()
    await _seen(zone, "/v0/later/host")
    mounts.tmpfs(later / "deeper", "size=64k")
    (later / "deeper/host").write_text("the host's, too")
    await _seen(zone, "/v0/later/deeper/host")
    for name in ("later", "later/deeper"):
        for way in ("echo > {}/new", "echo > {}/host", "rm {}/host", "chmod 0 {}", "mount -o remount,rw {}"):
            assert (await _sh(zone, way.format(f"/v0/{name}")))[0] != 0, way
    assert sorted(os.listdir(later)) == ["deeper", "host"] and os.listdir(later / "deeper") == ["host"]
    # On the host nothing changes, and the zone's view does not keep the host's mounts busy.
    assert mounts.unmount(later / "deeper")
    (later / "deeper").rmdir()
    await _gone(zone, "/v0/later/deeper/host")
    assert mounts.unmount(later)
    await _gone(zone, "/v0/later/host")
    mounts.tmpfs(later, "size=64k")
    (later / "again").touch()
    await _seen(zone, "/v0/later/again")


async def test_later_mount_is_never_writable(zone: Zones, later: Path) -> None:
    """The zone tries all the time, while the host mounts and unmounts."""
    await _started(zone, _volume(later.parent, follow=True))
    attack = "while :; do echo > /v0/later/new; touch /v0/later/host; done 2>/dev/null"
    attacker = asyncio.create_task(_sh(zone, attack))
    try:
        for _ in range(20):
            mounts.tmpfs(later, "size=64k")
            (later / "host").write_text("the host's")
            os.utime(later / "host", (1, 1))
            await _seen(zone, "/v0/later/host")
            assert os.listdir(later) == ["host"] and (later / "host").stat().st_mtime == 1
            assert mounts.unmount(later)
            await _gone(zone, "/v0/later/host")
        assert not os.listdir(later)
    finally:
        attacker.cancel()


async def test_later_mount_below_a_writable_volume_is_nosuid_and_nodev(zone: Zones, later: Path) -> None:
    """A writable mount: devices and set-user-ID programs act as plain files."""
    await _started(zone, _volume(later.parent, readonly=False, follow=True))
    mounts.tmpfs(later, "size=64k")
    (later / "host").touch()
    await _seen(zone, "/v0/later/host")
    assert await _sh(zone, "echo zone > /v0/later/host") == (0, "")
    assert (later / "host").read_text() == "zone\n"
    there = [line.split()[5] for line in _mountinfo(zone).splitlines() if " /w1/v/later " in line]
    assert there and all({"rw", "nosuid", "nodev"} <= set(options.split(",")) for options in there)
    assert mounts.unmount(later)
    await _gone(zone, "/v0/later/host")


@pytest.mark.parametrize("readonly", [False, True])
async def test_the_kernel_of_the_host_does_not_come_later(zone: Zones, later: Path, readonly: bool) -> None:
    await _started(zone, _volume(later.parent, readonly=readonly, follow=True))
    subprocess.run(["mount", "-t", "proc", "proc", later], check=True)
    beside = later.parent / "beside"
    beside.mkdir()
    mounts.tmpfs(beside, "size=64k")
    try:
        (beside / "host").touch()
        await _seen(zone, "/v0/beside/host")
        assert await _sh(zone, "ls -A /v0/later") == (0, "")
    finally:
        assert mounts.unmount(beside)


async def test_silent_file_server_mounted_later_is_not_asked(zone: Zones, later: Path) -> None:
    await _started(zone, _volume(later.parent, follow=True))
    with SilentServer(later.parent / "silent") as silent:
        mounts.tmpfs(later, "size=64k")
        (later / "host").touch()
        await _seen(zone, "/v0/later/host")
        assert mounts.unmount(later)
        await _gone(zone, "/v0/later/host")
        assert "/w1/v/silent" in _mountinfo(zone)
        assert silent.asked == 0


async def test_later_mounts_are_followed_across_a_restart_until_the_workload_ends(
    zone: Zones, later: Path
) -> None:
    await _started(zone, _volume(later.parent, follow=True))
    mounts.tmpfs(later, "size=64k")
    (later / "host").touch()
    await _seen(zone, "/v0/later/host")
    zone.protectd.daemon.kill()
    await zone.protectd.daemon.ended()
    assert mounts.unmount(later)
    mounts.tmpfs(later, "size=64k")
    (later / "other").touch()
    await zone.protectd.daemon.start()
    await _seen(zone, "/v0/later/other")
    await _gone(zone, "/v0/later/host")
    assert (await _sh(zone, "echo > /v0/later/other"))[0] != 0
    await zone.signal(9)
    await zone.wait()
    area = zone.protectd.run_dir / "volumes/z1"
    for namespace in ("namespace", "stage"):
        assert not mountspace.inside(area / namespace, lambda: os.path.exists("/w1"))
    assert mounts.unmount(later)


@pytest.mark.parametrize("readonly", [True, False])
@pytest.mark.parametrize("path", ["/proc", "/proc/sys/kernel", "/proc/self/environ", "/sys", "/sys/kernel"])
async def test_the_kernel_of_the_host_is_no_volume(zone: Zones, path: str, readonly: bool) -> None:
    async with failing(grpc.StatusCode.FAILED_PRECONDITION) as said:
        await _started(zone, _volume(path, readonly=readonly))
    assert "out of a zone's reach" in said[0]


async def test_links_to_the_kernel_of_the_host_are_followed_and_refused(zone: Zones, tmp_path: Path) -> None:
    (tmp_path / "innocent").symlink_to("/proc/sys")
    async with failing(grpc.StatusCode.FAILED_PRECONDITION) as said:
        await _started(zone, _volume(tmp_path / "innocent"))
    assert "proc of the host" in said[0]


async def test_the_root_of_the_host_comes_without_its_kernel(zone: Zones) -> None:
    """With a read-only volume ``/`` a pod could have changed what the host runs at each crash."""
    await _started(zone, _volume("/"))
    shown = "ls -A /v0/proc /v0/sys; test ! -e /v0/dev/kmsg && cat /v0/etc/hostname"
    assert await _sh(zone, shown) == (0, f"/v0/proc:\n\n/v0/sys:\n{Path('/etc/hostname').read_text()}")


async def test_below_a_volume_the_kernel_of_the_host_is_left_out(zone: Zones, below: Path) -> None:
    for name, kind in (("proc", "proc"), ("sys", "sysfs"), ("cgroup", "cgroup2")):
        (below / name).mkdir()
        subprocess.run(["mount", "-t", kind, kind, below / name], check=True)
    (below / "plain").mkdir()
    mounts.tmpfs(below / "plain", "size=64k")
    (below / "plain/file").write_text("seen")
    await _started(zone, _volume(below.parent, readonly=False))
    assert await _sh(zone, "cat /v0/below/plain/file; ls /v0/below/proc /v0/below/sys /v0/below/cgroup") == (
        0,
        "seen/v0/below/cgroup:\n\n/v0/below/proc:\n\n/v0/below/sys:\n",
    )
    # Only in the zone.
    assert (below / "proc/self").is_symlink() and (below / "sys/kernel").is_dir()
    before = (below / "proc").stat().st_dev
    again = below.parent.parent / "again"
    again.mkdir()
    subprocess.run(["mount", "--bind", below / "proc", again], check=True)  # refused for an unbindable mount
    assert again.stat().st_dev == before
    assert mounts.unmount(again)


async def test_programs_and_devices_of_a_volume_give_no_rights(zone: Zones, below: Path) -> None:
    """A zone's set-user-ID files and devices must not work for other users of the volume on the host."""
    await _started(zone, _volume(below.parent, readonly=False), _volume(below, name="w"))
    namespace = zone.protectd.run_dir / "volumes/z1/namespace"
    for place, readonly in (("/w1/v", 0), ("/w1/v/below", 0), ("/w1/w", os.ST_RDONLY)):
        flags = mountspace.inside(namespace, partial(os.statvfs, place)).f_flag
        assert flags & (os.ST_NOSUID | os.ST_NODEV | os.ST_RDONLY) == os.ST_NOSUID | os.ST_NODEV | readonly, (
            place
        )
