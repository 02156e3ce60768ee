"""Callers' views of the host's settings, of its room for zones, and of a zone's room for disks."""

from __future__ import annotations

from pathlib import Path

import grpc

from protect.model.capacity.host_resources import DiskLimit, HostNotice, ZoneCapacity
from tests.support.observe.messages import next_message
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.served import TIMEOUT, served
from tests.support.protect.zones import failing
from tests.support.waiting import until
from xenpod_proto.protect.v1 import protect_pb2 as pb

NOTICE = HostNotice("dom0_mem", "Xen's command line", "", "2048M,max:2048M", "its balloon can take memory")
SHOWN = pb.HostNotice(
    setting="dom0_mem",
    place="Xen's command line",
    wanted="2048M,max:2048M",
    effect="its balloon can take memory",
)


async def test_notices_are_told_when_they_come_and_go(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with served(tmp_path, toolstack) as node:
        watch = node.clients.host.Watch(pb.WatchRequest())
        assert (await next_message(watch)).WhichOneof("event") == "synced"
        toolstack.host_notices = [NOTICE]
        info = await node.clients.host.Info(pb.InfoRequest(), timeout=TIMEOUT)
        assert list(info.preflight) == [SHOWN]
        assert (
            "dom0_mem is not set: its balloon can take memory; set it to 2048M,max:2048M (Xen's command line)"
        ) in info.notices
        assert (await next_message(watch)).notice == SHOWN
        late = node.clients.host.Watch(pb.WatchRequest())
        assert (await next_message(late)).notice == SHOWN
        toolstack.host_notices = []
        info = await node.clients.host.Info(pb.InfoRequest(), timeout=TIMEOUT)
        assert not info.preflight
        assert (await next_message(watch)).notice_gone == "dom0_mem"
        watch.cancel()
        late.cancel()


async def test_a_zone_beyond_the_hypervisors_capacity_is_refused(
    tmp_path: Path, toolstack: MemoryToolstack
) -> None:
    """Foreign domains take of the room, too."""
    toolstack.zone_capacity = ZoneCapacity(3, "the table of maps has 3 rows")
    toolstack.foreign_memory = 1
    async with served(tmp_path, toolstack) as node:
        info = await node.clients.host.Info(pb.InfoRequest(), timeout=TIMEOUT)
        assert (info.zones_most, info.zones_bound) == (3, "the table of maps has 3 rows")
        await node.create_zone("a")
        await node.create_zone("b")
        async with failing(grpc.StatusCode.RESOURCE_EXHAUSTED) as said:
            await node.create_zone("c")
        assert "there are 3 domains, as many as the hypervisor has room for: the table of maps" in said[0]
        await node.clients.zones.DestroyZone(pb.DestroyZoneRequest(id="a"), timeout=TIMEOUT)
        await node.create_zone("c")


async def test_a_dead_zone_takes_no_room(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    toolstack.zone_capacity = ZoneCapacity(1, "one row")
    async with served(tmp_path, toolstack) as node:
        await node.create_zone("a")
        async with failing(grpc.StatusCode.RESOURCE_EXHAUSTED):
            await node.create_zone("b")
        toolstack.kill("a")
        await until(lambda: not toolstack.domains)
        await node.create_zone("b")


async def test_disks_of_a_zone_are_limited_by_its_memory(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    toolstack.disks_most = DiskLimit(2, "each takes 1 MiB of its 2 MiB")
    async with served(tmp_path, toolstack) as node:
        await node.create_zone()
        files = [tmp_path / f"layer{number}" for number in range(3)]
        for file in files:
            file.touch()
        layers = [pb.Filesystem(path=str(file), type="squashfs") for file in files]
        async with failing(grpc.StatusCode.RESOURCE_EXHAUSTED) as said:
            await node.create("w1", filesystems=layers)
        assert "zone z1 has 0 disks, 3 more would be more than 2: each takes 1 MiB of its 2 MiB" in said[0]
        await node.create("w1", filesystems=layers[:2])
        async with failing(grpc.StatusCode.RESOURCE_EXHAUSTED):
            await node.create("w2", filesystems=layers[2:])
