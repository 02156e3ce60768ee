"""Twenty zones are made, run and destroyed at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.images import busybox
from tests.support.protect.zones import Zones
from tests.xen.inside.protectd.xen_zones import destroy, listed, nothing_left, on_xen, settled
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = pytest.mark.timeout(7200)

MANY = 20
BOOT = 1800.0
"""Seconds: all zones share an emulated processor."""
_CONTAINERS = 4
"""At a time: an agent waits 20 s for a disk; under emulation twenty disks take longer."""
_LITTLE = pb.ZoneResources(weight=26)
"""The weight of a pod that requests 100m. Whole CPUs would leave dom0 a tenth of a CPU."""
NAMES = [f"z{number}" for number in range(MANY)]


@pytest.fixture
async def zones(tmp_path: Path) -> AsyncIterator[Zones]:
    image = busybox.build(tmp_path / "busybox.squashfs", tmp_path / "scratch")
    async with on_xen(tmp_path, image, BOOT) as zones:
        yield zones


async def test_all_zones_start_run_and_end(zones: Zones) -> None:
    await asyncio.gather(*(_create(zones, name) for name in NAMES))
    assert {zone.state for zone in (await listed(zones)).values()} == {pb.ZONE_STATE_RUNNING}
    for first in range(0, MANY, _CONTAINERS):
        await asyncio.gather(*(_runs(zones, name) for name in NAMES[first : first + _CONTAINERS]))
    zones.protectd.daemon.kill()
    await zones.protectd.daemon.restart()
    await settled(zones, *NAMES)
    await asyncio.gather(*(destroy(zones, name) for name in NAMES))
    await nothing_left(zones)


async def _create(zones: Zones, name: str) -> None:
    request = pb.CreateZoneRequest(id=name, name=name, interfaces=1, resources=_LITTLE)
    await zones.clients.zones.CreateZone(request, timeout=BOOT)


async def _runs(zones: Zones, name: str) -> None:
    """A container of the zone says the zone's name."""
    config = busybox.config(name, ["/bin/echo", name])
    request = zones.request([], name, name, oci_config=config)
    await zones.clients.workloads.CreateWorkload(request, timeout=BOOT)
    await zones.clients.workloads.StartWorkload(pb.StartWorkloadRequest(id=name), timeout=BOOT)
    ended = await zones.clients.workloads.WaitWorkload(pb.WaitWorkloadRequest(id=name), timeout=BOOT)
    assert (ended.exit_code, zones.lines(name)) == (0, [f"stdout F {name}"])
