"""SIGKILL of protectd at each step of an attach and of a detach: the zone has a device, or the host does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.images import busybox
from tests.support.protect.block_device import block_device, is_free, written
from tests.support.protect.crashes import armed, connected, killed, once_undone, steps, workloads
from tests.support.protect.zones import TIMEOUT, Zones, needs_protectd, serving
from tests.support.session.checkpoints import killed_at
from tests.support.waiting import until
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, pytest.mark.slow, needs_protectd]
CARD = "0000:65:00.0"
WRITE = "echo {} | dd of=/dev/data bs=512 conv=notrunc,fsync 2>/dev/null"


@pytest.fixture
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with block_device(tmp_path_factory.mktemp("device")) as device:
        yield device


@pytest.fixture
async def zones(tmp_path: Path, busybox_image: Path, device: Path) -> AsyncIterator[Zones]:
    host = {"devices": {"fast": str(device), "card": CARD}}
    fake = {"memory": "64GiB", "iommu": True, "pci": [CARD]}
    async with serving(tmp_path, busybox_image, host=host, fake=fake) as zones:
        await zones.create_zone(mode=pb.ZONE_MODE_PV)
        yield zones


async def held(zones: Zones) -> dict[str, bool]:
    """The devices of zones, and whether each is attached."""
    answer = await zones.clients.devices.ListDevices(pb.ListDevicesRequest(), timeout=TIMEOUT)
    return {one.name or one.place: one.attached for one in answer.devices if one.zone_id}


async def settled(zones: Zones, *names: str) -> None:
    """No change is in flight any more, and zones have these devices."""
    await connected(zones)

    async def attached() -> bool:
        return await held(zones) == dict.fromkeys(names, True)

    await until(attached)


async def attach(zones: Zones, name: str) -> None:
    request = pb.AttachDeviceRequest(zone_id="z1", device=name)
    await zones.clients.devices.AttachDevice(request, timeout=TIMEOUT)


async def detach(zones: Zones, name: str) -> None:
    request = pb.DetachDeviceRequest(zone_id="z1", device=name)
    await zones.clients.devices.DetachDevice(request, timeout=TIMEOUT)


async def create(zones: Zones, device: Path) -> None:
    wanted = [pb.WorkloadDevice(host_path=str(device), container_path="/dev/data")]
    config = busybox.config("w1", ["/bin/sleep", "1000"])
    await zones.create([], oci_config=config, devices=wanted)


async def works(zones: Zones, device: Path) -> None:
    """Check that the workload writes to the device, and that the host has the device after the workload."""
    await zones.start()
    assert (await zones.exec("/bin/sh", "-c", WRITE.format("works")))[2] == 0
    assert written(device) == b"works\n" and not is_free(device)
    await zones.delete()
    assert is_free(device) and await held(zones) == {}


@killed_at([*steps("device-attach"), "device-give.given"])
async def test_kill_while_a_workload_gets_a_device(zones: Zones, device: Path, step: str) -> None:
    await armed(zones, step)
    await killed(zones, create(zones, device))
    await connected(zones)
    assert "w1" not in await workloads(zones)
    await until(lambda: is_free(device))
    await settled(zones)
    await once_undone(lambda: create(zones, device))
    await works(zones, device)


@killed_at([*steps("device-detach"), "workload-delete.devices-released"])
async def test_kill_while_a_workload_returns_a_device(zones: Zones, device: Path, step: str) -> None:
    await create(zones, device)
    await armed(zones, step)
    await killed(zones, zones.delete())
    await connected(zones)
    await zones.delete()
    await settled(zones)
    assert is_free(device)
    await create(zones, device)
    await works(zones, device)


@pytest.mark.parametrize("name", ["fast", "card"])
@killed_at(steps("device-attach"))
async def test_killed_attach_is_undone_unless_recorded(
    zones: Zones, device: Path, name: str, step: str
) -> None:
    """An attached and recorded device stays, also if the caller got no answer."""
    await armed(zones, step)
    await killed(zones, attach(zones, name))
    await settled(zones, *([name] if step == "device-attach.done" else []))
    await attach(zones, name)
    await detach(zones, name)
    assert is_free(device) and await held(zones) == {}


@pytest.mark.parametrize("name", ["fast", "card"])
@killed_at(steps("device-detach"))
async def test_killed_detach_frees_the_device(zones: Zones, device: Path, name: str, step: str) -> None:
    await attach(zones, name)
    await armed(zones, step)
    await killed(zones, detach(zones, name))
    await settled(zones)
    assert is_free(device)
    await attach(zones, name)
    assert await held(zones) == {name: True}


@killed_at(["device-attach.attached", "device-give.of-zone"])
async def test_kill_while_a_zone_is_made_with_a_device(zones: Zones, device: Path, step: str) -> None:
    await armed(zones, step)
    await killed(zones, zones.create_zone("z2", devices=["fast", "card"], mode=pb.ZONE_MODE_PV))
    await settled(zones)
    await once_undone(lambda: zones.create_zone("z2", devices=["fast", "card"], mode=pb.ZONE_MODE_PV))
    assert await held(zones) == {"fast": True, "card": True}
    await zones.destroy_zone("z2")
    assert is_free(device)
