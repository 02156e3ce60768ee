"""The host's room on a Xen with a small map-track table (gnttab_max_maptrack_frames)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from tests.support.images import busybox
from tests.support.protect.zones import Zones, serving
from xenpod_proto.protect.v1 import protect_pb2 as pb

PATIENCE = 300.0
DISKS = 8
SYSFS = {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro", "nosuid"]}
PARAMETERS = "/sys/module/xen_blkfront/parameters"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image")
    return busybox.build(folder / "busybox.squashfs", folder / "root")


@pytest.fixture
async def zones(tmp_path: Path, image: Path) -> AsyncIterator[Zones]:
    """protectd on Xen."""
    settings: dict[str, object] = {
        "toolstack": "libxl",
        "profiles": {"default": {"memory": "128MiB", "mode": "pv"}},
        "libxl": {"kernel_arguments": "quiet"},
        "timeouts": {"boot": "300s", "call": "300s"},
        "limits": {"disks_per_zone": DISKS},
    }
    async with serving(tmp_path, image, **settings) as made:
        yield made


async def create(zones: Zones, zone_id: str, **more: object) -> pb.Zone:
    request = pb.CreateZoneRequest(id=zone_id, name="host", interfaces=1, **more)  # type: ignore[arg-type]
    return await zones.clients.zones.CreateZone(request, timeout=PATIENCE)


async def run(zones: Zones, zone_id: str, script: str) -> list[str]:
    """Output of a container."""
    config = busybox.config(zone_id, ["/bin/sh", "-c", script], mounts=[SYSFS])
    request = zones.request([], zone_id, zone_id, oci_config=config)
    await zones.clients.workloads.CreateWorkload(request, timeout=PATIENCE)
    await zones.clients.workloads.StartWorkload(pb.StartWorkloadRequest(id=zone_id), timeout=PATIENCE)
    ended = await zones.clients.workloads.WaitWorkload(pb.WaitWorkloadRequest(id=zone_id), timeout=PATIENCE)
    assert ended.exit_code == 0, zones.lines(zone_id)
    return zones.lines(zone_id)


async def test_capacity_beside_memory_matches_preflight(zones: Zones) -> None:
    """As many zones as preflight says, all at work at once; the next zone is refused for this reason."""
    info = await zones.clients.host.Info(pb.InfoRequest(), timeout=PATIENCE)
    found = {notice.setting: notice for notice in info.preflight}
    notice = found["gnttab_max_maptrack_frames"]
    assert 2 <= info.zones_most <= 6, "this Xen is to have a small table"
    assert f"{info.zones_most} zones fit, limits.zones of protectd.toml is 512" in notice.effect
    assert int(notice.wanted) > int(notice.value)
    consoles = {"XENCONSOLED_ARGS", "XENCONSOLED_TRACE"}
    assert not {"dom0_mem", *consoles, "guest_dir", "libxl.kernel"} & found.keys()
    names = [f"z{number}" for number in range(info.zones_most)]
    await asyncio.gather(*(create(zones, name) for name in names))
    work = "for i in 1 2 3; do echo 3 > /proc/sys/vm/drop_caches; cat /bin/* > /dev/null || exit 1; done"
    await asyncio.gather(*(run(zones, name, work) for name in names))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await create(zones, "more")
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"Xen's map-track table has {notice.value} frames" in (raised.value.details() or "")
    assert f"there is room for {info.zones_most}" in (raised.value.details() or "")
    await zones.destroy_zone("z0")
    await create(zones, "more")


async def test_the_block_driver_is_loaded_for_the_zones_memory(zones: Zones) -> None:
    await create(zones, "small")
    names = "max_queues max_indirect_segments feature_persistent"
    said = await run(zones, "small", f"cd {PARAMETERS}; cat {names}")
    assert said == ["stdout F 1", "stdout F 11", "stdout F N"]
