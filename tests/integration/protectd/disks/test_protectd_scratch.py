"""Scratch disks over protect.v1: the zones' space, the host's promises, and the remains."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import grpc
import pytest

from tests.support.images import busybox
from tests.support.protect.zones import TIMEOUT, Zones, failing, needs_protectd, serving
from tests.support.waiting import until
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, needs_protectd, pytest.mark.asyncio(loop_scope="module")]
Code = grpc.StatusCode
MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture(scope="module")
def zones_settings() -> Mapping[str, object]:
    return {"scratch": {"reserve": 0}}


@pytest.fixture
def zones(shared_zones: Zones) -> Zones:
    return shared_zones


def disk(zones: Zones, zone_id: str = "z1") -> Path:
    (found,) = zones.folder.glob(f"*/scratch/{zone_id}.img")
    return found


def volume_config(script: str, workload: str = "w1") -> bytes:
    bind = busybox.bind(f"/run/xenpod/containers/{workload}/volumes/0", "/v", "rbind", "rw")
    return busybox.config(workload, ["/bin/sh", "-c", script], mounts=[bind])


def cache(size_bytes: int = 0) -> pb.MemoryVolume:
    return pb.MemoryVolume(name="0", volume="cache", size_bytes=size_bytes, mode=0o1777, on_disk=True)


async def sh(zones: Zones, script: str, workload: str = "w1") -> str:
    stdout, stderr, _ = await zones.exec("/bin/sh", "-c", script, workload_id=workload)
    return (stderr + stdout).decode()


async def host(zones: Zones) -> pb.ScratchLedger:
    return (await zones.clients.host.Info(pb.InfoRequest(), timeout=TIMEOUT)).scratch


async def test_files_do_not_eat_the_zones_memory(zones: Zones) -> None:
    """A zone of 128 MiB writes 300 MiB, to its root and to a volume; without the disk the writes fail."""
    small = pb.ZoneResources(memory_bytes=128 * MIB)
    zone = await zones.create_zone(resources=small, scratch_bytes=GIB)
    assert zone.scratch_bytes == GIB
    await zones.create_zone("z2", resources=small, scratch_bytes=0)
    write = "dd if=/dev/zero of=/a bs=1M count=150 && dd if=/dev/zero of=/v/a bs=1M count=150 && echo written"
    for number, said in ((1, True), (2, False)):
        workload = f"w{number}"
        config = volume_config(write, workload)
        await zones.run(
            zone_id=f"z{number}", workload_id=workload, oci_config=config, memory_volumes=[cache()]
        )
        ended = await zones.wait(workload)
        assert (ended.exit_code == 0) is said, zones.lines(workload)
    assert not (zones.folder / "z2.img").exists()


async def test_the_disk_goes_with_its_zone_and_its_promise_too(zones: Zones) -> None:
    before = await host(zones)
    await zones.create_zone(scratch_bytes=GIB)
    path = disk(zones)
    assert path.stat().st_size == GIB and path.stat().st_mode & 0o777 == 0o600
    await zones.run("/bin/sh", "-c", "dd if=/dev/zero of=/a bs=1M count=64 conv=fsync; sleep 1000")
    await until(lambda: path.stat().st_blocks * 512 >= 64 * MIB)
    now = await host(zones)
    assert now.promised_bytes == GIB and 64 * MIB <= now.written_bytes < 80 * MIB
    assert before.free_bytes - now.free_bytes > GIB - 64 * MIB
    await zones.delete()
    await until(lambda: path.stat().st_blocks * 512 < 16 * MIB)
    await zones.destroy_zone()
    assert not path.exists()
    after = await host(zones)
    assert (after.promised_bytes, after.written_bytes) == (0, 0)


async def test_more_than_the_host_has_is_refused(zones: Zones) -> None:
    free = (await host(zones)).free_bytes
    async with failing(Code.RESOURCE_EXHAUSTED) as said:
        await zones.create_zone(scratch_bytes=free + 10 * GIB)
    assert "reserve scratch disk zone z1: it needs" in said[0] and "scratch.overcommit" in said[0]
    await zones.create_zone(scratch_bytes=free - 10 * GIB)
    async with failing(Code.RESOURCE_EXHAUSTED) as said:
        await zones.create_zone("z2", scratch_bytes=20 * GIB)
    assert "1 zones were promised" in said[0]
    assert (await host(zones)).promised_bytes == -(-(free - 10 * GIB) // MIB) * MIB


async def test_overcommit_is_a_setting(tmp_path: Path, busybox_image: Path) -> None:
    settings = {"scratch": {"overcommit": True}, "profiles": {"default": {"scratch_max": "100TiB"}}}
    async with serving(tmp_path, busybox_image, **settings) as zones:
        await zones.create_zone(scratch_bytes=4096 * GIB)
        await zones.run("/bin/sh", "-c", "echo x > /a; sleep 1000")
        told = await host(zones)
        assert told.overcommit and told.promised_bytes == 4096 * GIB and told.free_bytes == 0


@pytest.mark.parametrize("size", [1, 15 * MIB, 1025 * GIB])
async def test_impossible_size_is_refused(zones: Zones, size: int) -> None:
    async with failing(Code.INVALID_ARGUMENT) as said:
        await zones.create_zone(scratch_bytes=size)
    assert "scratch disk" in said[0]


async def test_limits_hold_within_the_zone(zones: Zones) -> None:
    await zones.create_zone(scratch_bytes=GIB)
    config = volume_config("sleep 1000")
    await zones.run(oci_config=config, memory_volumes=[cache(16 * MIB)], writable_bytes=8 * MIB)
    for place, limit in (("/v/a", 16 * MIB), ("/a", 8 * MIB)):
        said = await sh(zones, f"dd if=/dev/zero of={place} bs=65536; ls -l {place}")
        assert "No space left" in said
        assert 0.96 * limit <= int(said.splitlines()[-1].split()[4]) <= limit
    request = pb.WorkloadStatsRequest(ids=["w1"])
    (row,) = (await zones.clients.workloads.WorkloadStats(request, timeout=TIMEOUT)).rows
    assert 7.6 * MIB <= row.writable_layer_bytes <= 8.2 * MIB <= 1.1 * row.writable_layer_limit_bytes
    async with failing(Code.RESOURCE_EXHAUSTED) as text:
        await zones.create(["/bin/true"], "w2", writable_bytes=980 * MIB)
    assert "its limit takes" in text[0]
    await zones.run("/bin/true", workload_id="w2", writable_bytes=100 * MIB)
    assert (await zones.wait("w2")).exit_code == 0


async def test_a_zone_goes_on_with_its_disk_after_a_restart(zones: Zones) -> None:
    await zones.create_zone(scratch_bytes=GIB)
    await zones.run("/bin/sh", "-c", "echo kept > /a; sleep 1000", writable_bytes=8 * MIB)
    await zones.protectd.daemon.crash()
    stranger = disk(zones).with_name("gone.img")
    stranger.touch()
    await zones.protectd.daemon.start()
    assert await sh(zones, "dd if=/dev/zero of=/b bs=1M count=4 conv=fsync 2> /dev/null; cat /a") == "kept\n"
    assert (await host(zones)).promised_bytes == GIB
    assert not stranger.exists()
    await zones.run("/bin/sh", "-c", "echo again > /a; cat /a", workload_id="w2")
    await zones.wait("w2")
    assert zones.lines("w2") == ["stdout F again"]


@pytest.mark.parametrize("running", [True, False])
async def test_a_dead_zones_disk_is_removed(zones: Zones, running: bool) -> None:
    zone = await zones.create_zone(scratch_bytes=GIB)
    path = disk(zones)
    if not running:
        await zones.protectd.daemon.crash()
    os.kill(zone.domain_id, signal.SIGKILL)
    if not running:
        await zones.protectd.daemon.start()
    await until(lambda: not path.exists())

    async def released() -> bool:
        return not (await host(zones)).promised_bytes

    await until(released)  # after the file
    found = await zones.clients.zones.GetZone(pb.GetZoneRequest(id="z1"), timeout=TIMEOUT)
    assert found.state == pb.ZONE_STATE_DEAD


async def test_a_full_disk_of_the_host_is_held(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, busybox_image: Path
) -> None:
    """A promise beyond the host's space, kept as far as possible: an error in the zone, and nothing else."""
    place = tmp_path_factory.mktemp("small")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", place], check=True)
    try:
        settings = {"scratch": {"dir": str(place / "disks"), "overcommit": True}}
        async with serving(tmp_path, busybox_image, **settings) as zones:
            await zones.create_zone(scratch_bytes=GIB)
            await zones.create_zone("z2")
            await zones.run("/bin/sleep", "1000")
            said = await sh(zones, "dd if=/dev/zero of=/a bs=1M count=200 conv=fsync; rm /a; echo goes on")
            assert said.startswith("dd: ") and said.endswith("goes on\n"), said
            await zones.run("/bin/echo", "unharmed", workload_id="w2", zone_id="z2")
            await zones.wait("w2")
            assert zones.lines("w2") == ["stdout F unharmed"]
            await zones.destroy_zone()
            assert not list((place / "disks").iterdir())
            await asyncio.to_thread((place / "other").write_bytes, bytes(4096))
    finally:
        subprocess.run(["umount", place], check=True)
