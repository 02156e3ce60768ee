"""Rates of zones' disks: their owner, the notice of a host without rates, and their state after a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from daemonkit.config import Bytes
from daemonkit.rpc.channels import channel
from daemonkit.rpc.server import serve_unix
from protect.config import ZoneLimits
from protect.model.domain.shares import DiskRates
from protect.model.errors import ToolstackError
from protect.model.toolstack import Capabilities, DomainDeath, ShutdownReason
from protect.model.zone import ZoneState
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.protect_node import running, zone_spec
from tests.support.protect.zones import failing
from tests.support.waiting import until
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc as rpc

CAN = Capabilities(disk_rates=True)
RATES = DiskRates(1000, 0, 0, 20)
LIMITS = ZoneLimits(disk_read_rate=Bytes(500), disk_write_rate=Bytes(700))


@asynccontextmanager
async def serving(
    folder: Path, toolstack: MemoryToolstack, limits: ZoneLimits | None = None
) -> AsyncIterator[tuple[rpc.HostAsyncStub, rpc.ZonesAsyncStub]]:
    async with running(folder, toolstack, limits) as protectd:
        add = protectd.add_services
        async with serve_unix(folder / "s", add, name="p", grace=0.1), channel(folder / "s") as link:
            yield rpc.HostStub(link), rpc.ZonesStub(link)


async def test_the_lower_rate_of_request_and_configuration_holds(
    short_path: Path, toolstack: MemoryToolstack
) -> None:
    toolstack.can = CAN
    async with serving(short_path, toolstack, LIMITS) as (host, zones):
        asked = pb.DiskRates(read_bytes=1000, write_bytes=600, write_operations=20)
        zone = await zones.CreateZone(pb.CreateZoneRequest(id="z1", disk_rates=asked), timeout=60)
        held = DiskRates(500, 600, 0, 20)
        assert toolstack.of_zone("z1").disk_rates == [held]
        assert zone.disk_rates == pb.DiskRates(read_bytes=500, write_bytes=600, write_operations=20)
        await zones.CreateZone(pb.CreateZoneRequest(id="z2"), timeout=60)
        assert toolstack.of_zone("z2").disk_rates == [DiskRates(500, 700)]
        info = await host.Info(pb.InfoRequest(), timeout=60)
        assert info.capabilities.disk_rates and not any("limits.disk" in one for one in info.notices)


async def test_disk_rates_change_while_the_zone_runs(short_path: Path, toolstack: MemoryToolstack) -> None:
    toolstack.can = CAN
    async with serving(short_path, toolstack, LIMITS) as (_, zones):
        await zones.CreateZone(pb.CreateZoneRequest(id="z1"), timeout=60)
        given = toolstack.of_zone("z1").disk_rates
        asks = pb.ResizeZoneRequest(id="z1", disk_rates=pb.DiskRates(read_bytes=9))
        for _ in range(2):
            zone = (await zones.ResizeZone(asks, timeout=60)).zone
            assert zone.disk_rates == pb.DiskRates(read_bytes=9, write_bytes=700)
        assert given == [DiskRates(500, 700), DiskRates(9, 700)]
        await zones.ResizeZone(pb.ResizeZoneRequest(id="z1"), timeout=60)
        toolstack.failing.add("set_disk_rates")
        async with failing(grpc.StatusCode.INTERNAL):
            await zones.ResizeZone(pb.ResizeZoneRequest(id="z1", disk_rates=pb.DiskRates()), timeout=60)
        shown = await zones.GetZone(pb.GetZoneRequest(id="z1"), timeout=60)
        assert shown.disk_rates == zone.disk_rates, "what is not held is not shown"
        await zones.DestroyZone(pb.DestroyZoneRequest(id="z1"), timeout=60)
        async with failing(grpc.StatusCode.NOT_FOUND):
            await zones.ResizeZone(asks, timeout=60)


async def test_a_host_without_rates_has_a_notice(short_path: Path, toolstack: MemoryToolstack) -> None:
    """A requested rate is refused; rates configured for all zones cause a notice."""
    async with serving(short_path, toolstack, LIMITS) as (host, zones):
        async with failing(grpc.StatusCode.FAILED_PRECONDITION) as text:
            request = pb.CreateZoneRequest(id="z1", disk_rates=pb.DiskRates(read_bytes=1))
            await zones.CreateZone(request, timeout=60)
        assert "kernel cannot hold" in text[0]
        zone = await zones.CreateZone(pb.CreateZoneRequest(id="z1"), timeout=60)
        assert not zone.HasField("disk_rates") and toolstack.of_zone("z1").disk_rates == []
        info = await host.Info(pb.InfoRequest(), timeout=60)
        assert not info.capabilities.disk_rates
        assert [one for one in info.notices if "limits.disk_* are not held" in one]


async def test_a_zone_without_its_rates_is_not_made(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as protectd:
        toolstack.failing.add("set_disk_rates")
        with pytest.raises(ToolstackError):
            await protectd.launcher.launch(replace(zone_spec(), disk_rates=RATES))
        assert not protectd.registry.zones and not toolstack.domains
        await protectd.launcher.launch(zone_spec("z2"))


async def test_after_a_restart_disk_rates_are_held_again(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(replace(zone_spec(), disk_rates=RATES))
        assert protectd.registry.store.load().zones[0].spec.disk_rates == RATES
    for failing_ones in (set[str](), {"set_disk_rates"}):
        toolstack.failing |= failing_ones
        async with running(tmp_path, toolstack) as protectd:
            await until(lambda protectd=protectd: protectd.registry.zones["z1"].connected)
    assert toolstack.of_zone("z1").disk_rates == [RATES, RATES]


async def test_a_zone_with_a_reconnected_disk_is_ended(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(replace(zone_spec(), disk_rates=RATES))
        runtime = protectd.registry.zones["z1"]
        death = DomainDeath(runtime.zone.uuid, ShutdownReason.RECONNECTED)
        await protectd.deaths.on_death(runtime, death)
        assert runtime.zone.state is ZoneState.DEAD
        assert runtime.zone.death_reason.startswith("RulesBroken: its kernel connected a disk anew")
        assert toolstack.destroyed == ["z1"]
