"""Zones' shares of CPUs: recorded first, held by the hypervisor, and made right again after a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from daemonkit.faults import Fault
from protect.model.domain.shares import CpuShares
from protect.model.errors import ToolstackError
from protect.model.zone import ZoneSpec
from protect.zones.size.resize import ZoneSize
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.protect_node import resize, running, zone_spec
from tests.support.protect.served import TIMEOUT, Served, served
from tests.support.protect.zones import failing
from tests.support.waiting import until
from xenpod_proto.protect.v1 import protect_pb2 as pb

SHARES = CpuShares(512, 60)


@pytest.fixture
async def node(short_path: Path, toolstack: MemoryToolstack) -> AsyncIterator[Served]:
    async with served(short_path, toolstack) as node:
        yield node


def spec(shares: CpuShares = SHARES) -> ZoneSpec:
    return replace(zone_spec(), shares=shares)


@pytest.mark.parametrize(
    ("shares", "vcpus", "weight", "cap"),
    [
        (CpuShares(), 1, 256, 0),
        (CpuShares(), 4, 64, 0),
        (CpuShares(512, 150), 2, 256, 150),
        (CpuShares(1, 10), 4, 1, 10),
        (CpuShares(26, 100), 1, 26, 0),
        (CpuShares(26, 99), 1, 26, 99),
        (CpuShares(65_535, 110), 1, 256, 0),
        (CpuShares(65_535, 51_199), 512, 128, 51_199),
    ],
)
def test_weight_and_cap_are_divided_among_vcpus(shares: CpuShares, vcpus: int, weight: int, cap: int) -> None:
    assert (shares.vcpu_weight(vcpus), shares.binding_cap(vcpus)) == (weight, cap)


async def test_a_zone_boots_before_its_cap(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(spec())
        assert toolstack.of_zone("z1").cpu_shares == [CpuShares(512, 0), SHARES]
        await protectd.launcher.launch(replace(spec(CpuShares(26)), id="z2"))
        assert toolstack.of_zone("z2").cpu_shares == [CpuShares(26, 0)]


async def test_a_zone_without_its_weight_is_not_made(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as protectd:
        toolstack.failing.add("set_shares")
        with pytest.raises(ToolstackError):
            await protectd.launcher.launch(spec())
        assert not protectd.registry.zones and not toolstack.domains


async def test_a_resize_changes_only_the_named_shares(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(spec())
        given = toolstack.of_zone("z1").cpu_shares
        for wanted, expected in (
            (ZoneSize(weight=1), CpuShares(1, 60)),
            (ZoneSize(cap=0), CpuShares(1, 0)),
            (ZoneSize(weight=7, cap=9), CpuShares(7, 9)),
        ):
            assert await resize(protectd, "z1", wanted) == []
            assert given[-1] == protectd.registry.zones["z1"].zone.spec.shares == expected
            assert protectd.registry.store.load().zones[0].spec.shares == expected
        count = len(given)
        assert await resize(protectd, "z1", ZoneSize(weight=7)) == []
        assert await resize(protectd, "z1", ZoneSize(memory_bytes=1 << 50, weight=8)) != []
        assert len(given) == count, "nothing was to be done, or not all could be"


async def test_shares_refused_by_the_hypervisor_are_not_shown(
    tmp_path: Path, toolstack: MemoryToolstack
) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(spec())
        toolstack.failing.add("set_shares")
        with pytest.raises(Fault, match="set_shares"):
            await resize(protectd, "z1", ZoneSize(weight=1))
        assert protectd.registry.zones["z1"].zone.spec.shares == SHARES
        assert protectd.registry.store.load().zones[0].spec.shares == SHARES


async def test_after_a_restart_recorded_shares_are_held(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    """For any shares of the hypervisor: the daemon may have died, or an operator may have set shares."""
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(spec())
        protectd.registry.store.save_zone(
            replace(protectd.registry.zones["z1"].zone, spec=spec(CpuShares(9, 9))), None
        )
    async with running(tmp_path, toolstack) as protectd:
        await until(lambda: protectd.registry.zones["z1"].connected)
        assert toolstack.of_zone("z1").cpu_shares[-1] == CpuShares(9, 9)
    toolstack.failing.add("set_shares")
    async with running(tmp_path, toolstack) as protectd:
        await until(lambda: protectd.registry.zones["z1"].connected)


async def test_shares_are_set_over_the_wire(node: Served, toolstack: MemoryToolstack) -> None:
    zone = await node.create_zone(resources=pb.ZoneResources(weight=512, cap=60))
    assert (zone.resources.weight, zone.resources.cap) == (512, 60)
    asks = pb.ResizeZoneRequest(id="z1", resources=pb.ZoneResources(cap=0))
    zone = (await node.clients.zones.ResizeZone(asks, timeout=TIMEOUT)).zone
    assert (zone.resources.weight, zone.resources.cap) == (512, 0)
    other = await node.create_zone("z2")
    assert (other.resources.weight, other.resources.cap) == (256, 0)


@pytest.mark.parametrize(
    ("figures", "said"),
    [({"weight": 0}, "weight 0"), ({"weight": 65_536}, "weight 65536"), ({"cap": 102_401}, "cap 102401")],
)
async def test_invalid_share_is_refused(node: Served, figures: dict[str, Any], said: str) -> None:
    wrong = pb.ZoneResources(**figures)
    async with failing(grpc.StatusCode.INVALID_ARGUMENT) as text:
        await node.create_zone("z2", resources=wrong)
    assert said in text[0]
    await node.create_zone()
    async with failing(grpc.StatusCode.INVALID_ARGUMENT) as text:
        asks = pb.ResizeZoneRequest(id="z1", resources=wrong)
        await node.clients.zones.ResizeZone(asks, timeout=TIMEOUT)
    assert said in text[0]
