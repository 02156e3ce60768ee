"""SIGKILL of protectd at each step on libxl: the zone is complete, or dom0 has no trace of the zone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import grpc.aio
import pytest

import protect.toolstack.libxl.toolstack  # noqa: F401 - imports its steps
from tests.support.images import busybox
from tests.support.protect.crashes import armed, killed, steps
from tests.support.protect.zones import Zones
from tests.xen.inside.protectd.xen_zones import create, destroy, listed, nothing_left, on_xen, settled
from xenpod_proto.protect.v1 import protect_pb2 as pb

SCRATCH = 64 << 20


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image")
    (folder / "scratch").mkdir()
    return busybox.build(folder / "image.squashfs", folder / "scratch")


@pytest.fixture
async def zones(tmp_path: Path, image: Path) -> AsyncIterator[Zones]:
    async with on_xen(tmp_path, image) as zones:
        yield zones
        for zone_id in await listed(zones):
            await destroy(zones, zone_id)
        await nothing_left(zones)


# "libxl-": steps inside the toolstack itself.
@pytest.mark.parametrize("step", steps("zone-create", "libxl-create"))
async def test_killed_create_zone_is_complete_or_undone(zones: Zones, step: str) -> None:
    await armed(zones, step)
    scratch = SCRATCH if ".scratch-" in step else 0
    await killed(zones, create(zones, "z1", interfaces=1, scratch_bytes=scratch))
    if step == "zone-create.running":
        await settled(zones, "z1")
    else:
        await settled(zones)
        await nothing_left(zones)


@pytest.mark.parametrize("seconds", [0.05, 0.2, 0.4, 0.8, 1.6])
async def test_create_zone_at_any_moment(zones: Zones, seconds: float) -> None:
    """Also inside a call of libxl, with a half-made domain as result."""
    making = asyncio.ensure_future(create(zones, "z1", interfaces=1))
    await asyncio.sleep(seconds)
    zones.protectd.daemon.kill()
    await zones.protectd.daemon.restart()
    with suppress(grpc.aio.AioRpcError):
        await making
    await settled(zones, *await _survivors(zones))
    for zone_id in await listed(zones):
        await destroy(zones, zone_id)
    await nothing_left(zones)


async def _survivors(zones: Zones) -> list[str]:
    """The complete zones."""
    return [zone.id for zone in (await listed(zones)).values() if zone.state == pb.ZONE_STATE_RUNNING]


@pytest.mark.parametrize("step", steps("zone-destroy", "libxl-destroy"))
async def test_killed_destroy_zone_leaves_no_trace(zones: Zones, step: str) -> None:
    await create(zones, "z1", interfaces=1)
    await zones.run("/bin/sleep", "1000")
    await armed(zones, step)
    await settled(zones, "z1")
    await killed(zones, destroy(zones, "z1"))
    await settled(zones)
    await nothing_left(zones)
