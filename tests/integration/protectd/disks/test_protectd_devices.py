"""Devices of the host in zones of a real protectd, on the fake toolstack."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from tests.support.images import busybox
from tests.support.protect.block_device import SIZE, block_device, is_free, written
from tests.support.protect.zones import TIMEOUT, Zones, failing, needs_protectd
from tests.support.waiting import until
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, needs_protectd, pytest.mark.asyncio(loop_scope="module")]
WRITE = "echo {} | dd of={} bs=512 conv=notrunc,fsync 2>/dev/null"


@pytest.fixture(scope="module")
def module_device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with block_device(tmp_path_factory.mktemp("device")) as device:
        yield device


@pytest.fixture
def device(module_device: Path) -> Path:
    """An empty device."""
    with module_device.open("r+b") as disk:
        disk.write(bytes(SIZE))
        os.fsync(disk.fileno())
    return module_device


@pytest.fixture(scope="module")
def zones_settings(module_device: Path) -> Mapping[str, object]:
    """The device has the name "fast"; the PCI function exists only on the fake."""
    host = {"devices": {"fast": str(module_device), "card": "0000:65:00.0"}}
    fake = {"memory": "64GiB", "iommu": True, "pci": ["0000:65:00.0"]}
    return {"host": host, "fake": fake}


@pytest_asyncio.fixture(loop_scope="module")
async def zones(shared_zones: Zones) -> Zones:
    await shared_zones.create_zone()
    return shared_zones


def config(workload_id: str, script: str, uid: int = 0) -> bytes:
    """As this user, with the capability to make nodes, and the device rules of a container."""
    made = json.loads(busybox.config(workload_id, ["/bin/sh", "-c", script]))
    made["process"]["user"] = {"uid": uid, "gid": uid}
    made["process"]["capabilities"] = dict.fromkeys(("bounding", "effective", "permitted"), ["CAP_MKNOD"])
    made["linux"]["resources"]["devices"] = [{"allow": False, "access": "rwm"}]
    return json.dumps(made).encode()


async def listed(zones: Zones) -> list[tuple[str, str, bool, list[str]]]:
    answer = await zones.clients.devices.ListDevices(pb.ListDevicesRequest(), timeout=TIMEOUT)
    return [(one.name, one.zone_id, one.attached, list(one.workloads)) for one in answer.devices]


async def attach(zones: Zones, device: str, zone_id: str = "z1", **more: bool) -> pb.Device:
    request = pb.AttachDeviceRequest(zone_id=zone_id, device=device, **more)
    return await zones.clients.devices.AttachDevice(request, timeout=TIMEOUT)


async def detach(zones: Zones, device: str, zone_id: str = "z1", **more: bool) -> bool:
    request = pb.DetachDeviceRequest(zone_id=zone_id, device=device, **more)
    return (await zones.clients.devices.DetachDevice(request, timeout=TIMEOUT)).confirmed


@pytest.mark.parametrize(
    ("where", "uid", "node"),
    [("/dev/xvda", 5, "660 5 5"), ("/dev/deep/er", 0, "660 0 0"), ("/data", 0, "600 0 0")],
)
async def test_a_block_volume_is_written_read_back_and_given_back(
    zones: Zones, device: Path, where: str, uid: int, node: str
) -> None:
    """Attached while the zone runs; the node belongs to its user."""
    write = WRITE.format("by the zone", where)
    script = f"{write}; stat -c '%F %a %u %g' {where}; head -n 1 {where}; sleep 1000"
    wanted = [pb.WorkloadDevice(host_path=str(device), container_path=where, uid=uid, gid=uid)]
    await zones.run(oci_config=config("w1", script, uid), devices=wanted)
    await until(lambda: len(zones.lines()) == 2)
    assert zones.lines() == [f"stdout F block special file {node}", "stdout F by the zone"]
    assert not is_free(device)
    assert ("fast", "", False, []) in await listed(zones)
    [shown] = (await zones.clients.zones.GetZone(pb.GetZoneRequest(id="z1"), timeout=TIMEOUT)).devices
    assert (shown.place, shown.disk, shown.attached, list(shown.workloads)) == (
        str(device),
        "xvdb",
        True,
        ["w1"],
    )
    await zones.delete()
    assert is_free(device) and written(device) == b"by the zone\n"
    assert [one for one in await listed(zones) if one[1]] == []


async def test_a_container_opens_its_own_device_alone(zones: Zones, device: Path) -> None:
    """Not even with a self-made node."""
    wanted = [pb.WorkloadDevice(host_path=str(device), container_path="/dev/mine", readonly=True)]
    script = "dd if=/dev/mine of=/dev/null count=1 2>/dev/null && echo read; {}; sleep 1000".format(
        WRITE.format("no", "/dev/mine")
    )
    await zones.run(oci_config=config("w1", script), devices=wanted)
    await until(lambda: zones.lines() == ["stdout F read"])
    disk = os.stat(f"/proc/{await _pid(zones)}/root/dev/xvdb").st_rdev
    mknod = f"/bin/busybox mknod /dev/n b {os.major(disk)} {os.minor(disk)} && ls /dev/n"
    script = f"{mknod}; dd if=/dev/n count=1 of=/dev/null 2>/dev/null || echo refused"
    await zones.run(oci_config=config("w2", script), workload_id="w2")
    await zones.wait("w2")
    assert zones.lines("w2") == ["stdout F /dev/n", "stdout F refused"]
    assert written(device) == b""


async def _pid(zones: Zones) -> int:
    zone = await zones.clients.zones.GetZone(pb.GetZoneRequest(id="z1"), timeout=TIMEOUT)
    return zone.domain_id


async def test_device_of_a_zone_is_refused_to_the_host_and_other_zones(
    zones: Zones, device: Path, tmp_path: Path
) -> None:
    subprocess.run(["mkfs.ext4", "-q", str(device)], check=True)
    await zones.create_zone("z2")
    wanted = [pb.WorkloadDevice(name="fast", container_path="/dev/fast")]
    await zones.run(oci_config=config("w1", "sleep 1000"), devices=wanted)
    async with failing(grpc.StatusCode.FAILED_PRECONDITION) as said:
        await attach(zones, str(device), "z2")
    assert "zone z1 has it" in said[0]
    place = tmp_path / "place"
    place.mkdir()
    assert subprocess.run(["mount", str(device), str(place)], capture_output=True).returncode
    await zones.delete()
    subprocess.run(["mount", str(device), str(place)], check=True)
    try:
        async with failing(grpc.StatusCode.FAILED_PRECONDITION) as said:
            await zones.create([], oci_config=config("w1", "sleep 1000"), devices=wanted)
        assert f"the host has it mounted at {place}" in said[0]
    finally:
        subprocess.run(["umount", str(place)], check=True)
    await attach(zones, "fast", "z2")


async def test_hot_attach_and_detach(zones: Zones, device: Path) -> None:
    """By an operator: the zone's privileged containers see it come and go."""
    given = await attach(zones, "fast", readonly=True)
    assert (given.kind, given.disk, given.readonly, given.attached) == (
        pb.DEVICE_KIND_BLOCK,
        "xvda",
        True,
        True,
    )
    node = Path(f"/proc/{await _pid(zones)}/root/dev/xvda")
    assert stat.S_ISBLK(node.stat().st_mode)
    assert ("fast", "z1", True, []) in await listed(zones)
    held = os.open(node, os.O_RDONLY | os.O_EXCL)
    async with failing(grpc.StatusCode.FAILED_PRECONDITION) as said:
        await detach(zones, "fast")
    os.close(held)
    assert "mounted, or somebody there has it to himself" in said[0]
    assert await detach(zones, "fast")
    assert not node.exists() and is_free(device)
    assert await detach(zones, "fast")
    for wrong, code in (
        ("nothing", grpc.StatusCode.NOT_FOUND),
        ("/dev/null", grpc.StatusCode.INVALID_ARGUMENT),
        ("/dev/no-such", grpc.StatusCode.NOT_FOUND),
        ("0000:65:00.0", grpc.StatusCode.INVALID_ARGUMENT),
        ("../x", grpc.StatusCode.INVALID_ARGUMENT),
    ):
        async with failing(code):
            await attach(zones, wrong)


async def test_devices_of_the_zone_request_are_attached_until_the_zone_ends(
    zones: Zones, device: Path
) -> None:
    async with failing(grpc.StatusCode.NOT_FOUND) as said:
        await zones.create_zone("z2", devices=["nothing"])
    assert "[host.devices]" in said[0]
    await zones.create_zone("z2", devices=["fast", "card"], mode=pb.ZONE_MODE_PV)
    assert sorted(await listed(zones)) == [("card", "z2", True, []), ("fast", "z2", True, [])]
    wanted = [pb.WorkloadDevice(name=name, container_path=f"/dev/xenpod/{name}") for name in ("fast", "card")]
    script = f"ls /dev/xenpod; {WRITE.format('named', '/dev/xenpod/fast')}"
    await zones.run(oci_config=config("w1", script), devices=wanted, zone_id="z2")
    await zones.wait()
    assert zones.lines() == ["stdout F fast"] and written(device) == b"named\n"
    await zones.delete()
    assert sorted(await listed(zones)) == [("card", "z2", True, []), ("fast", "z2", True, [])]
    await zones.destroy_zone("z2")
    assert is_free(device)


async def test_device_stays_with_its_zone_across_restarts(zones: Zones, device: Path) -> None:
    """Also across a kill: the container goes on writing, and nobody else gets the device."""
    wanted = [pb.WorkloadDevice(host_path=str(device), container_path="/dev/data")]
    await zones.run(oci_config=config("w1", "sleep 1000"), devices=wanted)
    for end in (zones.protectd.daemon.stop, zones.protectd.daemon.crash):
        await end()
        await zones.protectd.daemon.start()
        script = WRITE.format(end.__name__, "/dev/data")
        assert (await zones.exec("/bin/sh", "-c", script))[2] == 0
        assert written(device) == end.__name__.encode() + b"\n"
        assert not is_free(device)
    await zones.delete()
    assert is_free(device)
