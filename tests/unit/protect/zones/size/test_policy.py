"""The dynamic memory policy: a table of cases, its hysteresis, and a zone under the policy."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from protect.model.zone import MemoryPolicy
from protect.state.manager import ZoneManager
from protect.zones import launch
from protect.zones.size.follow import MemoryFollower
from protect.zones.size.policy import PATIENCE, STEP, Bounds, Look, SizeVerdict, decide
from protect.zones.size.resize import ZoneSize, resize
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.protect_node import running, zone_spec

MIB = 1 << 20
BOUNDS = Bounds(128 * MIB, 1024 * MIB)


@pytest.mark.parametrize(
    ("memory", "available", "idle", "expected", "idle_after"),
    [
        # enough: the size stays, and earlier idle looks are forgotten
        (256, 100, 0, 256, 0),
        (256, 33, 5, 256, 0),
        # tight: the zone grows at once, to its use, a quarter of its use, and a step
        (256, 31, 0, 304, 0),
        (256, 0, 3, 336, 0),
        (512, 10, 0, 656, 0),
        # up to its maximum, and no further
        (900, 0, 0, 1024, 0),
        (1024, 0, 0, 1024, 0),
        # too large, but not for long enough
        (512, 400, 0, 512, 1),
        (512, 400, PATIENCE - 2, 512, PATIENCE - 1),
        # for long enough: the zone shrinks to its need
        (512, 400, PATIENCE - 1, 160, 0),
        (1024, 624, PATIENCE - 1, 528, 0),
        # but not below its minimum
        (512, 511, PATIENCE - 1, 128, 0),
        (128, 127, PATIENCE - 1, 128, 0),
        # and not by little
        (208, 90, PATIENCE - 1, 208, 0),
        # nonsense of the zone
        (256, 10_000, PATIENCE - 1, 128, 0),
        # beyond its bounds, set later: the zone does not grow further
        (2048, 1, 0, 2048, 0),
    ],
)
def test_the_policy_decides_each_case(
    memory: int, available: int, idle: int, expected: int, idle_after: int
) -> None:
    verdict = decide(Look(memory * MIB, available * MIB), BOUNDS, idle)
    assert (verdict.memory_bytes // MIB, verdict.idle_looks) == (expected, idle_after)
    assert verdict.memory_bytes % MIB == 0


@pytest.mark.parametrize("seed", range(20))
def test_size_settles_within_its_bounds_at_any_use(seed: int) -> None:
    """And a steady use leads to a steady size: no going up and down."""
    chance = random.Random(seed)
    verdict = SizeVerdict(256 * MIB)
    for _ in range(20):
        used = chance.randrange(1, 1024) * MIB
        sizes = []
        for _ in range(6 * PATIENCE):
            memory = verdict.memory_bytes
            look = Look(memory, max(0, memory - used))
            verdict = decide(look, BOUNDS, verdict.idle_looks)
            sizes.append(verdict.memory_bytes)
            assert BOUNDS.least_bytes <= verdict.memory_bytes <= BOUNDS.most_bytes
        assert len(set(sizes[-2 * PATIENCE :])) == 1, [size // MIB for size in sizes]
        assert sizes[-1] >= min(used + STEP // 2, BOUNDS.most_bytes)


DYNAMIC = replace(
    zone_spec(),
    memory_bytes=256 * MIB,
    memory_max_bytes=512 * MIB,
    memory_min_bytes=128 * MIB,
    memory_policy=MemoryPolicy.DYNAMIC,
)


@pytest.fixture
async def manager(tmp_path: Path, toolstack: MemoryToolstack) -> AsyncIterator[ZoneManager]:
    async with running(tmp_path, toolstack, total=600 * MIB) as manager:
        await launch.launch(manager, DYNAMIC)
        yield manager


def uses(toolstack: MemoryToolstack, mebibytes: int) -> None:
    size = toolstack.of_zone("z1").agent.size
    size.memory_available_bytes = max(0, size.memory_total_bytes - mebibytes * MIB)


def memory(manager: ZoneManager) -> int:
    size = manager.zones["z1"].zone.spec.memory_bytes
    assert manager.store.load().zones[0].spec.memory_bytes == size
    return size // MIB


async def test_a_zone_grows_and_shrinks_with_its_use(
    manager: ZoneManager, toolstack: MemoryToolstack
) -> None:
    follower = MemoryFollower(manager)
    uses(toolstack, 250)
    await follower.look()
    assert memory(manager) == 336 == toolstack.of_zone("z1").memory // MIB
    uses(toolstack, 20)
    for _ in range(PATIENCE - 1):
        await follower.look()
        assert memory(manager) == 336
    await follower.look()
    assert memory(manager) == 128 == toolstack.of_zone("z1").memory // MIB
    assert manager.ledger.reserved_bytes == 128 * MIB


async def test_a_static_zone_stays(manager: ZoneManager, toolstack: MemoryToolstack) -> None:
    assert await resize(manager, "z1", ZoneSize(memory_policy=MemoryPolicy.STATIC)) == []
    uses(toolstack, 256)
    for _ in range(PATIENCE + 1):
        await MemoryFollower(manager).look()
    assert memory(manager) == 256
    assert manager.zones["z1"].zone.spec.memory_policy is MemoryPolicy.STATIC


async def test_a_resize_limits_the_growth(manager: ZoneManager, toolstack: MemoryToolstack) -> None:
    """The zone keeps its memory for its use, unless the memory exceeds the new limit."""
    assert await resize(manager, "z1", ZoneSize(memory_bytes=300 * MIB)) == []
    assert memory(manager) == 256
    uses(toolstack, 256)
    for _ in range(3):
        await MemoryFollower(manager).look()
        uses(toolstack, 300)
    assert memory(manager) == 300
    uses(toolstack, 50)
    assert await resize(manager, "z1", ZoneSize(memory_bytes=200 * MIB)) == []
    assert memory(manager) == 200
    # A container with fewer needs than the pod's present size has no effect.
    assert await resize(manager, "z1", ZoneSize(memory_bytes=150 * MIB), only_more=True) == []
    assert manager.zones["z1"].zone.spec.policy_limit == 200 * MIB
    assert len(await resize(manager, "z1", ZoneSize(memory_bytes=513 * MIB))) == 1


async def test_a_host_without_memory_leaves_the_zone_unchanged(
    manager: ZoneManager, toolstack: MemoryToolstack
) -> None:
    other = replace(zone_spec(), id="z2", memory_bytes=320 * MIB)
    await launch.launch(manager, other)
    uses(toolstack, 256)
    follower = MemoryFollower(manager)
    for _ in range(2):
        await follower.look()
        assert memory(manager) == 256
    toolstack.failing.add("set_memory")
    uses(toolstack, 1)
    for _ in range(PATIENCE + 1):
        await follower.look()
    assert memory(manager) == 256, "a failure is no end"


async def test_a_lying_zone_stays_within_its_bounds(manager: ZoneManager, toolstack: MemoryToolstack) -> None:
    follower = MemoryFollower(manager)
    size = toolstack.of_zone("z1").agent.size
    for total, available in ((0, 2**64 - 1), (2**64 - 1, 0), (2**64 - 1, 2**64 - 1), (1, 1)):
        for _ in range(PATIENCE + 1):
            size.memory_total_bytes, size.memory_available_bytes = total, available
            await follower.look()
            assert 128 <= memory(manager) <= 512
    toolstack.kill("z1")
    await follower.look()
