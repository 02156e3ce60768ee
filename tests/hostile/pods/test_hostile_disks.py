"""A compromised zone that reads its disks as fast as possible, past all control groups of its own.

The devices count the zone's bytes, for any reader. The count is compared with the elapsed time: a slow
machine reads fewer bytes.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from protect.host.disk_rates.throttle import can_throttle
from tests.support.cri.cri_daemons import CriNode, needs_node
from tests.support.protect import leftovers
from tests.support.protect.zones import TIMEOUT, Zones, needs_protectd, stack
from tests.support.waiting import until
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc as protect

pytestmark = [pytest.mark.root, needs_protectd]

KIB, MIB = 1 << 10, 1 << 20
RATE = MIB
SIZE = 16 * MIB
SECTOR = 512


class Victim:
    """A zone with its own disk, and the readers in its groups."""

    def __init__(self, zones: Zones, zone_id: str, groups: list[Path], image: Path) -> None:
        self.zones = zones
        self.zone_id = zone_id
        self.image = image
        (self.group,) = (group for group in groups if can_throttle(group))

    @property
    def loop(self) -> str:
        (found,) = (line.split()[0] for line in leftovers.loops(self.zones.folder) if str(self.image) in line)
        return found

    def came(self) -> int:
        """Bytes read from the zone's disk, by any reader."""
        return self._stat(2) * SECTOR

    def done(self) -> int:
        """Number of ended reads."""
        return self._stat(0)

    def _stat(self, field: int) -> int:
        """Source: Documentation/block/stat.rst."""
        return int(Path(f"/sys/block/{self.loop}/stat").read_text().split()[field])

    @asynccontextmanager
    async def reading(self, block: str = "256k") -> AsyncIterator[None]:
        """In a group of its own without limits, if groups are nested (version 2)."""
        mine = self.group
        if (self.group / "io.max").exists():
            mine = self.group / "hostile"
            mine.mkdir()
        script = f"read _; while :; do dd if=/dev/{self.loop} of=/dev/null bs={block} iflag=direct; done"
        quiet = asyncio.subprocess.DEVNULL
        reader = await asyncio.create_subprocess_exec("sh", "-c", script, stdin=-1, stderr=quiet)
        try:
            (mine / "cgroup.procs").write_text(str(reader.pid))
            assert reader.stdin
            reader.stdin.close()
            yield
        finally:
            if reader.returncode is None:
                reader.kill()
            await reader.wait()


async def victim(zones: Zones, zone_id: str, rates: pb.DiskRates | None) -> Victim:
    """A zone with a running container, from an image of its own."""
    image = zones.folder / f"{zone_id}.squashfs"
    shutil.copy(zones.image, image)
    with image.open("r+b") as file:
        file.truncate(SIZE)
    before = set(leftovers.cgroups(zones.protectd.run_dir))
    await zones.create_zone(zone_id, disk_rates=rates)
    groups = [Path(group) for group in set(leftovers.cgroups(zones.protectd.run_dir)) - before]
    await zones.run(
        "/bin/sleep", "1000", workload_id=f"w-{zone_id}", zone_id=zone_id, filesystems=stack(image)
    )
    return Victim(zones, zone_id, groups, image)


async def test_a_zone_reads_no_faster_than_its_rate(zones: Zones) -> None:
    """Beside a zone without a rate, which reads more."""
    hostile = await victim(zones, "hostile", pb.DiskRates(read_bytes=RATE))
    honest = await victim(zones, "honest", None)
    begun, taken, given = time.monotonic(), hostile.came(), honest.came()
    async with hostile.reading(), honest.reading():
        await until(lambda: hostile.came() - taken >= 4 * RATE and honest.came() - given >= 16 * RATE)
        seconds = time.monotonic() - begun
        taken, given = hostile.came() - taken, honest.came() - given
    assert taken <= 1.2 * RATE * seconds + RATE, f"{taken} bytes in {seconds:.1f} s"
    assert given > 2 * taken, f"{given} bytes beside {taken}"


async def test_operations_have_a_rate_too(zones: Zones) -> None:
    hostile = await victim(zones, "hostile", pb.DiskRates(read_operations=50))
    begun, before = time.monotonic(), hostile.done()
    async with hostile.reading(block="4k"):
        await until(lambda: hostile.done() - before >= 150)
        seconds = time.monotonic() - begun
        done = hostile.done() - before
    assert done <= 1.2 * 50 * seconds + 50, f"{done} operations in {seconds:.1f} s"


async def test_throttled_read_does_not_delay_the_end_of_its_zone(zones: Zones) -> None:
    """A read of minutes is under way, and no signal ends the read."""
    hostile = await victim(zones, "hostile", pb.DiskRates(read_bytes=64 * KIB))
    before = hostile.came()
    async with hostile.reading(block=str(SIZE)):
        await until(lambda: hostile.came() > before)
        await zones.destroy_zone("hostile")
    assert not hostile.group.exists()


async def test_impossible_rates_are_refused(zones: Zones) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await zones.create_zone(disk_rates=pb.DiskRates(read_bytes=2**51))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not (await zones.clients.zones.ListZones(pb.ListZonesRequest(), timeout=TIMEOUT)).zones


# -- limits set by a pod's author

READ = "xenpod.dev/disk-read-rate"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[CriNode]:
    made = CriNode(tmp_path)
    made.protectd.configure(limits={"disk_write_rate": "8MiB", "disk_read_rate": "64MiB"})
    made.configure(handlers={"slow": {"disk_read_rate": "1MiB", "annotations": [READ]}})
    await made.start()
    yield made
    await made.close()


async def _rates(node: CriNode, annotations: Mapping[str, str], handler: str = "slow") -> pb.DiskRates:
    metadata = cri.PodSandboxMetadata(name="hostile", uid="u", namespace="default")
    config = cri.PodSandboxConfig(metadata=metadata, annotations=annotations)
    async with node.client() as client, node.protectd.daemon.channel() as link:
        request = cri.RunPodSandboxRequest(config=config, runtime_handler=handler)
        made = (await client.runtime.RunPodSandbox(request, timeout=60)).pod_sandbox_id
        zone = await protect.ZonesStub(link).GetZone(pb.GetZoneRequest(id=made), timeout=60)
        await client.runtime.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=made), timeout=60)
    return zone.disk_rates


@needs_node
async def test_an_annotation_only_lowers_the_rates_of_disks(node: CriNode) -> None:
    for notes, handler, read in (
        ({}, "slow", MIB),
        ({READ: "512Ki"}, "slow", 512 * KIB),
        ({}, "xenpod", 64 * MIB),
    ):
        assert await _rates(node, notes, handler) == pb.DiskRates(read_bytes=read, write_bytes=8 * MIB)
    for notes, handler, code, said in (
        ({READ: "2Mi"}, "slow", "PERMISSION_DENIED", "handlers.slow.disk_read_rate"),
        ({READ: "512Ki"}, "xenpod", "PERMISSION_DENIED", "handlers.xenpod.annotations"),
        ({READ: "0"}, "slow", "INVALID_ARGUMENT", READ),
        ({READ: "fast"}, "slow", "INVALID_ARGUMENT", READ),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _rates(node, notes, handler)
        assert caught.value.code().name == code and said in (caught.value.details() or "")
