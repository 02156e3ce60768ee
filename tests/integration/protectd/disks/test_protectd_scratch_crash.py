"""SIGKILL of protectd at each step that has to do with a scratch disk: none stays behind, none is lost."""

from __future__ import annotations

import pytest

from tests.support.protect import leftovers
from tests.support.protect.crashes import armed, connected, killed, steps
from tests.support.protect.zones import TIMEOUT, Zones, needs_protectd
from tests.support.session.checkpoints import killed_at
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, pytest.mark.slow, needs_protectd]
SIZE = 1 << 28


async def alive(zones: Zones) -> list[str]:
    await connected(zones)
    answer = await zones.clients.zones.ListZones(pb.ListZonesRequest(), timeout=TIMEOUT)
    return [zone.id for zone in answer.zones]


async def promised(zones: Zones) -> int:
    return (await zones.clients.host.Info(pb.InfoRequest(), timeout=TIMEOUT)).scratch.promised_bytes


async def writes(zones: Zones) -> None:
    await zones.run("/bin/sh", "-c", "echo x > /a && cat /a")
    assert (await zones.wait()).exit_code == 0


@killed_at(steps("zone-create", "scratch"))
async def test_killed_create_leaves_a_working_zone_or_no_disk(zones: Zones, step: str) -> None:
    await armed(zones, step)
    await killed(zones, zones.create_zone(scratch_bytes=SIZE))
    if "z1" not in await alive(zones):
        await zones.destroy_zone()
        assert await promised(zones) == 0
        assert not leftovers.loops(zones.folder) and not list(zones.folder.glob("*/scratch/*"))
        await zones.create_zone(scratch_bytes=SIZE)
    assert await promised(zones) == SIZE
    await writes(zones)


@killed_at(steps("zone-destroy"))
async def test_killed_destroy_leaves_no_scratch_disk(zones: Zones, step: str) -> None:
    await zones.create_zone(scratch_bytes=SIZE)
    await writes(zones)
    await zones.delete()
    await armed(zones, step)
    await killed(zones, zones.destroy_zone())
    await alive(zones)
    await zones.destroy_zone()
    assert await promised(zones) == 0
    assert not leftovers.loops(zones.folder) and not list(zones.folder.glob("*/scratch/*"))
    await zones.create_zone(scratch_bytes=SIZE)
    await writes(zones)
