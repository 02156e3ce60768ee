"""SIGKILL of protectd during changes of a running zone: its size, and its devices.

All tests share a zone: a test begins with the state after the previous test.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

import protect.toolstack.libxl.toolstack  # noqa: F401 - imports its steps
from tests.support.images import busybox
from tests.support.protect.block_device import block_device, is_free, written
from tests.support.protect.crashes import armed, killed, steps
from tests.support.protect.zones import Zones, stack
from tests.support.waiting import until
from tests.xen.inside.protectd.xen_zones import PATIENCE, create, destroy, nothing_left, on_xen, settled
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

MIB = 1 << 20
BEGIN = pb.ZoneResources(
    memory_bytes=144 * MIB, memory_max_bytes=192 * MIB, vcpus=2, vcpus_max=3, weight=256, cap=0
)
MORE = pb.ZoneResources(memory_bytes=176 * MIB, vcpus=3, weight=128, cap=150)
LESS = pb.ZoneResources(memory_bytes=128 * MIB, vcpus=1, weight=128, cap=50)
OTHER = "other.squashfs"
Shown = tuple[int, int, int, int]


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with block_device(tmp_path_factory.mktemp("device")) as device:
        yield device


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def zones(tmp_path_factory: pytest.TempPathFactory, device: Path) -> AsyncIterator[Zones]:
    folder = tmp_path_factory.mktemp("changes")
    image = busybox.build(folder / "busybox.squashfs", folder / "scratch")
    shutil.copy(image, folder / OTHER)
    async with on_xen(folder, image, host={"devices": {"fast": str(device)}}) as zones:
        await create(zones, "z1", resources=BEGIN)
        await zones.run("/bin/sleep", "1000000")
        yield zones
        await destroy(zones, "z1")
        await nothing_left(zones)


def numbers(resources: pb.ZoneResources) -> Shown:
    return resources.memory_bytes // MIB, resources.vcpus, resources.weight, resources.cap


async def resize(zones: Zones, wanted: pb.ZoneResources) -> None:
    request = pb.ResizeZoneRequest(id="z1", resources=wanted)
    answer = await zones.clients.zones.ResizeZone(request, timeout=PATIENCE)
    assert list(answer.not_done) == []


async def shown(zones: Zones) -> tuple[Shown, int]:
    """The recorded size, and the zone's own number of CPUs."""
    zone = await zones.clients.zones.GetZone(pb.GetZoneRequest(id="z1"), timeout=PATIENCE)
    facts = await zones.clients.zones.ZoneFacts(pb.ZoneFactsRequest(id="z1"), timeout=PATIENCE)
    return numbers(zone.resources), facts.cpus


@pytest.mark.parametrize("step", steps("zone-resize"))
async def test_killed_resize_is_complete_or_undone(zones: Zones, step: str) -> None:
    """The whole resize or none, in the record and in the zone; then another resize works as before."""
    await armed(zones, step)
    await killed(zones, resize(zones, LESS if step.endswith("-taken") else MORE))
    await settled(zones, "z1")
    expected = numbers(MORE if step == "zone-resize.done" else BEGIN)
    found: tuple[Shown, int] | None = None

    async def as_expected() -> bool:
        nonlocal found
        found = await shown(zones)
        return found == (expected, expected[1])

    await until(as_expected, PATIENCE, lambda: f"{found}, not {expected}")
    assert (await zones.get()).state == pb.WORKLOAD_STATE_RUNNING
    await resize(zones, LESS)
    await resize(zones, BEGIN)


async def held(zones: Zones) -> dict[str, bool]:
    answer = await zones.clients.devices.ListDevices(pb.ListDevicesRequest(), timeout=PATIENCE)
    return {one.name: one.attached for one in answer.devices if one.zone_id}


async def has(zones: Zones, *names: str) -> None:
    """Wait until the zone has exactly the given devices."""
    await settled(zones, "z1")

    async def exactly() -> bool:
        return await held(zones) == dict.fromkeys(names, True)

    await until(exactly, PATIENCE)


async def attach(zones: Zones) -> None:
    request = pb.AttachDeviceRequest(zone_id="z1", device="fast")
    await zones.clients.devices.AttachDevice(request, timeout=PATIENCE)


async def detach(zones: Zones) -> None:
    request = pb.DetachDeviceRequest(zone_id="z1", device="fast")
    await zones.clients.devices.DetachDevice(request, timeout=PATIENCE)


@pytest.mark.parametrize("step", steps("device-attach"))
async def test_killed_attach_is_undone_unless_recorded(zones: Zones, device: Path, step: str) -> None:
    await armed(zones, step)
    await killed(zones, attach(zones))
    await has(zones, *(["fast"] if step == "device-attach.done" else []))
    await attach(zones)
    await has(zones, "fast")
    await detach(zones)
    await has(zones)
    assert is_free(device)


@pytest.mark.parametrize("step", steps("device-detach"))
async def test_killed_detach_frees_the_device(zones: Zones, device: Path, step: str) -> None:
    await attach(zones)
    await armed(zones, step)
    await killed(zones, detach(zones))
    await has(zones)
    assert is_free(device)


@pytest.mark.parametrize("step", steps("workload-create"))
async def test_a_workload_with_a_disk_and_a_device(zones: Zones, device: Path, step: str) -> None:
    """The workload is complete, or no trace is left; the next workload gets the disk and device."""
    await armed(zones, step)
    await killed(zones, _workload(zones, device))
    complete = step == "workload-create.created"
    await has(zones, *([""] if complete else []))  # the device of a workload has no name
    if complete:
        assert "w2" in await _workloads(zones)
        await zones.delete("w2")
        await has(zones)

    async def undone() -> bool:
        return "w2" not in await _workloads(zones)

    await until(undone, PATIENCE)
    await _workload(zones, device)
    await zones.start("w2")
    script = "echo there | dd of=/dev/data bs=512 conv=notrunc,fsync 2>/dev/null"
    assert (await zones.exec("/bin/sh", "-c", script, workload_id="w2"))[2] == 0
    assert written(device) == b"there\n"
    await zones.delete("w2")
    await has(zones)
    assert is_free(device)


async def _workload(zones: Zones, device: Path) -> None:
    wanted = [pb.WorkloadDevice(host_path=str(device), container_path="/dev/data")]
    config = busybox.config("w2", ["/bin/sleep", "1000000"])
    # Its own filesystem: the zone already has the disk of the other workload's image.
    filesystems = stack(zones.folder / OTHER)
    request = zones.request([], "w2", oci_config=config, devices=wanted, filesystems=filesystems)
    await zones.clients.workloads.CreateWorkload(request, timeout=PATIENCE)


async def _workloads(zones: Zones) -> set[str]:
    answer = await zones.clients.workloads.ListWorkloads(pb.ListWorkloadsRequest(), timeout=PATIENCE)
    return {one.id for one in answer.workloads}
