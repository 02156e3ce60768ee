"""ResizeZone on Xen, by a real protectd: the guest's and Xen's figures, and SIGKILL at each step."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
import pytest_asyncio

from tests.support.protect.crashes import steps
from tests.support.protect.daemons import Clients, Protectd
from tests.support.waiting import until
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1 << 20
PATIENCE = 240.0
MODE = os.environ.get("XENPOD_TEST_MODE", "pv")
BEGIN = pb.ZoneResources(
    memory_bytes=192 * MIB, memory_max_bytes=320 * MIB, vcpus=2, vcpus_max=3, weight=256, cap=0
)
MORE = pb.ZoneResources(memory_bytes=320 * MIB, vcpus=3, weight=512, cap=50)
LESS = pb.ZoneResources(memory_bytes=160 * MIB, vcpus=1, weight=512, cap=50)
Seen = tuple[int, int, int, int]


class OneZone:
    """A zone of a protectd."""

    def __init__(self, protectd: Protectd, clients: Clients, zone_id: str = "z1") -> None:
        self.protectd = protectd
        self.clients = clients
        self._id = zone_id

    async def make(self, begin: pb.ZoneResources) -> None:
        request = pb.CreateZoneRequest(id=self._id, name="web", resources=begin)
        await self.clients.zones.CreateZone(request, timeout=PATIENCE)
        row = await self._stats()
        assert row is not None
        self.own = begin.memory_bytes - row.memory_total_bytes

    async def resize(self, wanted: pb.ZoneResources) -> list[str]:
        asks = pb.ResizeZoneRequest(id=self._id, resources=wanted)
        return list((await self.clients.zones.ResizeZone(asks, timeout=PATIENCE)).not_done)

    async def _stats(self) -> pb.ZoneStatsRow | None:
        """None: the zone has not answered in time, as is possible right after protectd's start."""
        request = pb.ZoneStatsRequest(ids=[self._id])
        rows = (await self.clients.zones.ZoneStats(request, timeout=PATIENCE)).rows
        return rows[0] if rows else None

    async def is_settled(self, wanted: pb.ZoneResources) -> bool:
        """The size is recorded, held by Xen and seen by the guest, right after the connect."""
        request = pb.GetZoneRequest(id=self._id)
        zone = await self.clients.zones.GetZone(request, timeout=PATIENCE, wait_for_ready=True)
        if not zone.channel_connected:
            return False
        row, facts = await self._stats(), await self._facts()
        if row is None:
            return False
        shown = zone.resources
        recorded = all(
            getattr(shown, one) == getattr(wanted, one) for one in ("memory_bytes", "vcpus", "cap")
        )
        sizes = (row.memory_total_bytes + self.own, row.host_memory_bytes)
        near = all(abs(size - wanted.memory_bytes) <= 3 * MIB + wanted.memory_bytes // 64 for size in sizes)
        return recorded and near and facts.cpus == wanted.vcpus == row.host_vcpus

    async def _facts(self) -> pb.ZoneFactsResponse:
        return await self.clients.zones.ZoneFacts(pb.ZoneFactsRequest(id=self._id), timeout=PATIENCE)

    async def settles(self, wanted: pb.ZoneResources) -> None:
        await until(lambda: self.is_settled(wanted), PATIENCE)

    async def destroy(self) -> None:
        await self.clients.zones.DestroyZone(pb.DestroyZoneRequest(id=self._id), timeout=PATIENCE)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def zone(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OneZone]:
    folder: Path = tmp_path_factory.mktemp("sizes")
    protectd = Protectd(folder)
    limits = {"boot": f"{PATIENCE:.0f}s", "resize": "120s", "stats": "20s"}
    protectd.configure(toolstack="libxl", profiles={"default": {"mode": MODE}}, timeouts=limits)
    await protectd.daemon.start()
    try:
        async with protectd.clients() as clients:
            made = OneZone(protectd, clients)
            await made.make(BEGIN)
            yield made
            await made.destroy()
    finally:
        await protectd.daemon.stop()


async def test_up_and_down_and_back(zone: OneZone) -> None:
    for wanted in (MORE, LESS, BEGIN):
        assert await zone.resize(wanted if wanted is not BEGIN else _back()) == []
        assert await zone.is_settled(wanted), "it is confirmed before the answer"


async def test_a_zone_without_headroom_grows_by_hot_plug(zone: OneZone) -> None:
    """More than the zone was built for, in several of Linux' memory sections, and back."""
    small = pb.ZoneResources(memory_bytes=160 * MIB, vcpus=1, cap=0)
    grown = OneZone(zone.protectd, zone.clients, "z2")
    await grown.make(small)
    try:
        for mebibytes in (200, 160 + 384, 160):
            wanted = pb.ZoneResources(memory_bytes=mebibytes * MIB, vcpus=1, cap=0)
            assert await grown.resize(wanted) == []
            await grown.settles(wanted)
    finally:
        await grown.destroy()


def _back() -> pb.ZoneResources:
    return pb.ZoneResources(memory_bytes=BEGIN.memory_bytes, vcpus=BEGIN.vcpus, weight=256, cap=0)


async def test_memory_in_use_by_the_zone_fails_the_whole_resize(zone: OneZone) -> None:
    """The kernel alone needs more memory; the rest of the resize is not done either."""
    asked = pb.ZoneResources(memory_bytes=64 * MIB, vcpus=1, weight=9)
    (not_done,) = await zone.resize(asked)
    assert not_done.startswith("memory: 64 MiB wanted, the zone can go down to ")
    assert 64 < int(not_done.split("down to ")[1].split()[0]) < 192
    await zone.settles(BEGIN)


@pytest.mark.parametrize("step", steps("zone-resize"))
async def test_a_zone_can_be_resized_after_a_kill_during_a_resize(zone: OneZone, step: str) -> None:
    daemon = zone.protectd.daemon
    await daemon.stop()
    zone.protectd.configure(faults={"kill_at": step})
    await daemon.start()
    await zone.settles(BEGIN)
    wanted = LESS if step.endswith("-taken") else MORE
    with pytest.raises(grpc.aio.AioRpcError):
        await zone.resize(wanted)
    assert await daemon.ended(PATIENCE) == -9
    zone.protectd.configure(faults={})
    await daemon.start()
    await zone.settles(wanted if step == "zone-resize.done" else BEGIN)
    async with asyncio.timeout(PATIENCE):
        assert await zone.resize(_back()) == []
