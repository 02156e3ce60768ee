"""Volumes of the host in the life of a workload, on a toolstack and an agent in memory."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from daemonkit.faults import Broken, Exhausted, Fault, Invalid, TooLate
from daemonkit.host.lookup import Lookups
from protect.config import ZoneLimits
from protect.model.container import MemoryVolume
from protect.model.volume import Volume
from protect.server import requests
from protect.volumes.area import Area
from protect.volumes.host_volumes import HostVolumes
from protect.workloads import control, start
from tests.support.agent.agent_sim import SimAgent
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.protect_node import MemoryVolumes, running, workload_spec, zone_spec
from tests.support.session.open_files import descriptors, opened_since
from tests.support.waiting import until
from xenpod_proto.protect.v1 import protect_pb2 as pb

VOLUMES = (Volume("0", "/srv"), Volume("1", "/etc/hosts"))


@pytest.fixture
def volumes(tmp_path: Path) -> MemoryVolumes:
    return MemoryVolumes(tmp_path / "volumes")


def end(agent: SimAgent) -> None:
    created = agent.processes["w1", ""].created
    agent.end(created.stdout_stream)
    agent.end(created.stderr_stream)
    agent.exit("w1", 0)


async def test_from_the_creation_to_the_end(
    tmp_path: Path, toolstack: MemoryToolstack, volumes: MemoryVolumes
) -> None:
    async with running(tmp_path, toolstack, volumes=volumes) as protectd:
        await protectd.launcher.launch(zone_spec())
        assert toolstack.of_zone("z1").spec.shared == volumes.shared("z1")
        before = descriptors()
        await protectd.creation.create(workload_spec(tmp_path, volumes=VOLUMES))
        assert volumes.attached == {"z1": {"w1": ["0", "1"]}}
        assert len(opened_since(before)) <= 2, "its log and journal are open, and nothing else"
        await start.start(protectd.registry, protectd.ports.volumes, "w1")
        assert volumes.attached == {"z1": {"w1": ["0", "1"]}}
        agent = toolstack.of_zone("z1").agent
        end(agent)
        await control.wait(protectd.registry, protectd.lifetime.stopping, "w1")
        assert volumes.attached == {"z1": {}}
        await protectd.workload_removal.delete("w1")
        await protectd.removal.destroy("z1")
        assert volumes.zones() == []


@pytest.mark.parametrize("failing", ["take", "attach"])
async def test_failed_volume_fails_the_create_and_leaves_nothing(
    tmp_path: Path, toolstack: MemoryToolstack, volumes: MemoryVolumes, failing: str
) -> None:
    async with running(tmp_path, toolstack, volumes=volumes) as protectd:
        await protectd.launcher.launch(zone_spec())
        volumes.failing.add(failing)
        before = descriptors()
        with pytest.raises(Broken):
            await protectd.creation.create(workload_spec(tmp_path, volumes=VOLUMES))
        assert not protectd.registry.workloads and not toolstack.of_zone("z1").disks
        assert volumes.attached == {"z1": {}} and not opened_since(before)
        volumes.failing.clear()
        await protectd.creation.create(workload_spec(tmp_path, volumes=VOLUMES))


async def test_volumes_of_a_refused_workload_are_released(
    tmp_path: Path, toolstack: MemoryToolstack, volumes: MemoryVolumes
) -> None:
    limits = ZoneLimits(workloads_per_zone=1)
    async with running(tmp_path, toolstack, limits, volumes=volumes) as protectd:
        await protectd.launcher.launch(zone_spec())
        await protectd.creation.create(workload_spec(tmp_path))
        before = descriptors()
        with pytest.raises(Exhausted):
            await protectd.creation.create(workload_spec(tmp_path, "w2", volumes=VOLUMES))
        assert not opened_since(before)


async def test_volume_with_a_failed_detach_is_detached_by_the_next_delete(
    tmp_path: Path, toolstack: MemoryToolstack, volumes: MemoryVolumes
) -> None:
    async with running(tmp_path, toolstack, volumes=volumes) as protectd:
        await protectd.launcher.launch(zone_spec())
        await protectd.creation.create(workload_spec(tmp_path, volumes=VOLUMES))
        await start.start(protectd.registry, protectd.ports.volumes, "w1")
        volumes.failing.add("detach")
        end(toolstack.of_zone("z1").agent)
        await control.wait(protectd.registry, protectd.lifetime.stopping, "w1")
        with pytest.raises(Broken):
            await protectd.workload_removal.delete("w1")
        assert "w1" in protectd.registry.workloads and volumes.attached["z1"]
        volumes.failing.clear()
        await protectd.workload_removal.delete("w1")
        assert volumes.attached == {"z1": {}}


async def test_volume_with_a_failed_detach_is_detached_at_the_daemons_start(
    tmp_path: Path, toolstack: MemoryToolstack, volumes: MemoryVolumes
) -> None:
    async with running(tmp_path, toolstack, volumes=volumes) as protectd:
        await protectd.launcher.launch(zone_spec())
        await protectd.creation.create(workload_spec(tmp_path, volumes=VOLUMES))
        await start.start(protectd.registry, protectd.ports.volumes, "w1")
        volumes.failing.add("detach")
        end(toolstack.of_zone("z1").agent)
        await control.wait(protectd.registry, protectd.lifetime.stopping, "w1")
    volumes.failing.clear()
    async with running(tmp_path, toolstack, volumes=volumes) as protectd:
        await until(lambda: volumes.attached == {"z1": {}})


async def test_a_zone_with_an_impossible_directory_fails(
    tmp_path: Path, toolstack: MemoryToolstack, volumes: MemoryVolumes
) -> None:
    volumes.failing.add("open")
    async with running(tmp_path, toolstack, volumes=volumes) as protectd:
        with pytest.raises(Broken):
            await protectd.launcher.launch(zone_spec())
        assert not protectd.registry.zones and not toolstack.domains


async def test_volumes_of_forgotten_zones_are_removed_at_start(
    tmp_path: Path, toolstack: MemoryToolstack, volumes: MemoryVolumes
) -> None:
    volumes.attached["forgotten"] = {"w1": ["0"]}
    async with running(tmp_path, toolstack, volumes=volumes) as protectd:
        await protectd.launcher.launch(zone_spec())
        assert volumes.zones() == ["z1"]
    volumes.attached["forgotten"] = {}
    volumes.failing.add("close")
    async with running(tmp_path, toolstack, volumes=volumes) as protectd:
        assert list(protectd.registry.zones) == ["z1"], "it starts all the same"


def program(folder: Path, does: str) -> Path:
    """A program in place of hostc/lookup; its socket is descriptor 0."""
    made = folder / "lookup"
    made.write_text(f"#!/bin/sh\n{does}\n")
    made.chmod(0o755)
    (folder / "pids").touch()
    return made


async def test_a_silent_file_server_times_out(tmp_path: Path) -> None:
    """The caller is freed, and no process or file is left."""
    volumes = HostVolumes(tmp_path, program(tmp_path, f"echo $$ >> {tmp_path}/pids; exec sleep 1000"))
    before = descriptors()
    with pytest.raises(TooLate) as raised:
        await volumes.take("z1", VOLUMES, 0.5)
    assert "/srv" in str(raised.value)
    asking = asyncio.create_task(volumes.take("z1", VOLUMES, 60))
    await until(lambda: len((tmp_path / "pids").read_text().split()) == 2)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await until(lambda: not opened_since(before))
    for pid in (tmp_path / "pids").read_text().split():
        assert not Path("/proc", pid).exists()


async def test_each_zone_has_two_look_ups_at_once(tmp_path: Path) -> None:
    volumes = HostVolumes(tmp_path, program(tmp_path, f"echo $$ >> {tmp_path}/pids; exec sleep 1000"))
    asking = [asyncio.create_task(volumes.take("z1", VOLUMES, 60)) for _ in range(5)]
    await until(lambda: len((tmp_path / "pids").read_text().split()) == 2)
    other = asyncio.create_task(volumes.take("z2", VOLUMES, 60))
    await until(lambda: len((tmp_path / "pids").read_text().split()) == 3)
    with pytest.raises(TooLate, match="earlier look-ups of the zone have not come back"):
        await volumes.take("z1", VOLUMES, 0.05)
    for each in (*asking[:2], other):
        each.cancel()
    # Waiting callers get their turn.
    await until(lambda: len((tmp_path / "pids").read_text().split()) == 5)
    for each in asking:
        each.cancel()
    await asyncio.gather(*asking, other, return_exceptions=True)


async def test_zones_of_a_tenant_leave_look_ups_to_others(tmp_path: Path) -> None:
    slow = program(tmp_path, f"echo $$ >> {tmp_path}/pids; exec sleep 1000")
    lookups = Lookups(slow, lambda zone: zone[0], each=2, most=8)

    async def hold(zone: str) -> None:
        async with lookups.begin(zone):
            await asyncio.Event().wait()

    evil = [asyncio.create_task(hold(f"e{number}")) for number in range(10)]
    await until(lambda: len((tmp_path / "pids").read_text().split()) == 4)
    assert lookups.stuck("e11") and not lookups.stuck("honest")
    honest = asyncio.create_task(hold("honest"))
    await until(lambda: len((tmp_path / "pids").read_text().split()) == 5)
    for each in (*evil, honest):
        each.cancel()
    await asyncio.gather(*evil, honest, return_exceptions=True)
    await until(lambda: not lookups.stuck("e11"))


@pytest.mark.parametrize(
    ("does", "said"), [("exit 1", "has ended"), ("exec 0>&-; exit", "has ended"), (None, "make zone")]
)
async def test_broken_lookup_program_fails_the_take_and_leaks_nothing(
    tmp_path: Path, does: str | None, said: str
) -> None:
    volumes = HostVolumes(tmp_path, program(tmp_path, does) if does else tmp_path / "nothing")
    before = descriptors()
    with pytest.raises(Broken, match=said):
        await volumes.take("z1", VOLUMES, 60)
    await until(lambda: not opened_since(before))


async def test_hanging_unmounts_delay_no_other_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def detach(area: Area, workload: str) -> None:
        assert workload == "quick" or go_on.wait(120)

    monkeypatch.setattr(Area, "detach", detach)
    volumes = HostVolumes(tmp_path, tmp_path / "lookup")
    stuck = [asyncio.create_task(volumes.detach(f"z{number}", "stuck")) for number in range(40)]
    await asyncio.sleep(0)
    honest = asyncio.create_task(volumes.detach("honest", "quick"))
    try:
        await asyncio.wait([honest], timeout=60)
        assert honest.done() and not any(each.done() for each in stuck)
    finally:
        go_on.set()
        await asyncio.gather(*stuck)


FINE = pb.Filesystem(path="/x", type="squashfs")


def volume(*stack: pb.Filesystem) -> pb.ImageVolume:
    return pb.ImageVolume(name="a", filesystems=stack)


REFUSED = [
    ({"filesystems": []}, "its root: 0 file systems are not 1 to 8"),
    ({"filesystems": [FINE] * 9}, "its root: 9 file systems"),
    ({"filesystems": [FINE, pb.Filesystem(path="/y", type="ext4")]}, "'ext4' is not one of"),
    ({"filesystems": [FINE, pb.Filesystem(path="y", type="erofs")]}, "absolute path"),
    ({"filesystems": [FINE, pb.Filesystem(path="/x/../y", type="erofs")]}, "absolute path"),
    ({"image_volumes": [volume()]}, "volume a: 0 file systems"),
    ({"image_volumes": [volume(*[FINE] * 9)]}, "volume a: 9 file systems"),
    ({"image_volumes": [volume(pb.Filesystem(path="/x"))]}, "volume a: file system ''"),
    ({"volumes": [pb.Volume(name="a/b", host_path="/x")]}, "file name"),
    ({"volumes": [pb.Volume(name="a", host_path="x")]}, "absolute"),
    ({"volumes": [pb.Volume(name="a", host_path="/x/../y")]}, "absolute"),
    ({"volumes": [pb.Volume(name="a", host_path="/x")] * 2}, "two volumes"),
    ({"volumes": [pb.Volume(name=f"v{n}", host_path="/x") for n in range(257)]}, "257"),
    ({"memory_volumes": [pb.MemoryVolume(name="a/b", volume="v")]}, "volume id"),
    ({"memory_volumes": [pb.MemoryVolume(name="a", volume="v/w")]}, "file name"),
    ({"memory_volumes": [pb.MemoryVolume(name="a", volume="v", mode=0o10000)]}, "mode"),
    ({"memory_volumes": [pb.MemoryVolume(name="a", volume="v", sub_path="/x")]}, "sub path"),
    ({"memory_volumes": [pb.MemoryVolume(name="a", volume="v", sub_path="x/../y")]}, "sub path"),
    ({"memory_volumes": [pb.MemoryVolume(name="a", volume="v")] * 2}, "two volumes"),
    ({"memory_volumes": [pb.MemoryVolume(name=f"v{n}", volume="v") for n in range(257)]}, "257"),
    (
        {
            "memory_volumes": [pb.MemoryVolume(name="a", volume="v")],
            "image_volumes": [pb.ImageVolume(name="a", filesystems=[FINE])],
        },
        "two volumes",
    ),
]


@pytest.mark.parametrize(("fields", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_invalid_requests_are_refused(fields: dict[str, object], words: str) -> None:
    fine: dict[str, object] = {
        "zone_id": "z",
        "id": "w",
        "oci_config": b"{}",
        "filesystems": [FINE],
    }
    requests.workload_spec(pb.CreateWorkloadRequest(**fine))  # type: ignore[arg-type]
    with pytest.raises(Fault) as raised:
        requests.workload_spec(pb.CreateWorkloadRequest(**(fine | fields)))  # type: ignore[arg-type]
    assert isinstance(raised.value, Invalid) and words in str(raised.value)


async def test_memory_is_not_larger_than_the_zones(
    tmp_path: Path, toolstack: MemoryToolstack, volumes: MemoryVolumes
) -> None:
    async with running(tmp_path, toolstack, volumes=volumes) as protectd:
        zone = await protectd.launcher.launch(zone_spec())
        most = zone.spec.memory_bytes
        asked = [MemoryVolume(name=str(size), volume="v", size_bytes=size) for size in (0, most - 1, most)]
        await protectd.creation.create(replace(workload_spec(tmp_path), memory_volumes=asked))
        made = toolstack.of_zone("z1").agent.requests[-1].create_container.memory_volumes
        assert [volume.size_bytes for volume in made] == [most // 2, most - 1, most // 2]
