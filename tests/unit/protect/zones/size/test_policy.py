"""The dynamic memory policy: a table of cases, its hysteresis, and a zone under the policy."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from protect.assembly import Assembly
from protect.model.zone import MemoryPolicy
from protect.zones.size.follow import MemoryFollower
from protect.zones.size.policy import PATIENCE_LOOKS, STEP_BYTES, Bounds, Look, SizeVerdict, decide
from protect.zones.size.resize import ZoneSize
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.protect_node import resize, running, zone_spec

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
        (512, 400, PATIENCE_LOOKS - 2, 512, PATIENCE_LOOKS - 1),
        # for long enough: the zone shrinks to its need
        (512, 400, PATIENCE_LOOKS - 1, 160, 0),
        (1024, 624, PATIENCE_LOOKS - 1, 528, 0),
        # but not below its minimum
        (512, 511, PATIENCE_LOOKS - 1, 128, 0),
        (128, 127, PATIENCE_LOOKS - 1, 128, 0),
        # and not by little
        (208, 90, PATIENCE_LOOKS - 1, 208, 0),
        # nonsense of the zone
        (256, 10_000, PATIENCE_LOOKS - 1, 128, 0),
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
        for _ in range(6 * PATIENCE_LOOKS):
            memory = verdict.memory_bytes
            look = Look(memory, max(0, memory - used))
            verdict = decide(look, BOUNDS, verdict.idle_looks)
            sizes.append(verdict.memory_bytes)
            assert BOUNDS.least_bytes <= verdict.memory_bytes <= BOUNDS.most_bytes
        assert len(set(sizes[-2 * PATIENCE_LOOKS :])) == 1, [size // MIB for size in sizes]
        assert sizes[-1] >= min(used + STEP_BYTES // 2, BOUNDS.most_bytes)


DYNAMIC = replace(
    zone_spec(),
    memory_bytes=256 * MIB,
    memory_max_bytes=512 * MIB,
    memory_min_bytes=128 * MIB,
    memory_policy=MemoryPolicy.DYNAMIC,
)


@pytest.fixture
async def protectd(tmp_path: Path, toolstack: MemoryToolstack) -> AsyncIterator[Assembly]:
    async with running(tmp_path, toolstack, total=600 * MIB) as protectd:
        await protectd.launcher.launch(DYNAMIC)
        yield protectd


def uses(toolstack: MemoryToolstack, mebibytes: int) -> None:
    size = toolstack.of_zone("z1").agent.size
    size.memory_available_bytes = max(0, size.memory_total_bytes - mebibytes * MIB)


def memory(protectd: Assembly) -> int:
    size = protectd.registry.zones["z1"].zone.spec.memory_bytes
    assert protectd.registry.store.load().zones[0].spec.memory_bytes == size
    return size // MIB


async def test_a_zone_grows_and_shrinks_with_its_use(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    follower = MemoryFollower(protectd.registry, protectd.sizing, protectd.config.memory)
    uses(toolstack, 250)
    await follower.look()
    assert memory(protectd) == 336 == toolstack.of_zone("z1").memory // MIB
    uses(toolstack, 20)
    for _ in range(PATIENCE_LOOKS - 1):
        await follower.look()
        assert memory(protectd) == 336
    await follower.look()
    assert memory(protectd) == 128 == toolstack.of_zone("z1").memory // MIB
    assert protectd.ledger.reserved_bytes == 128 * MIB


async def test_a_static_zone_stays(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    assert await resize(protectd, "z1", ZoneSize(memory_policy=MemoryPolicy.STATIC)) == []
    uses(toolstack, 256)
    for _ in range(PATIENCE_LOOKS + 1):
        await MemoryFollower(protectd.registry, protectd.sizing, protectd.config.memory).look()
    assert memory(protectd) == 256
    assert protectd.registry.zones["z1"].zone.spec.memory_policy is MemoryPolicy.STATIC


async def test_a_resize_limits_the_growth(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    """The zone keeps its memory for its use, unless the memory exceeds the new limit."""
    assert await resize(protectd, "z1", ZoneSize(memory_bytes=300 * MIB)) == []
    assert memory(protectd) == 256
    uses(toolstack, 256)
    for _ in range(3):
        await MemoryFollower(protectd.registry, protectd.sizing, protectd.config.memory).look()
        uses(toolstack, 300)
    assert memory(protectd) == 300
    uses(toolstack, 50)
    assert await resize(protectd, "z1", ZoneSize(memory_bytes=200 * MIB)) == []
    assert memory(protectd) == 200
    # A container with fewer needs than the pod's present size has no effect.
    assert await resize(protectd, "z1", ZoneSize(memory_bytes=150 * MIB), only_more=True) == []
    assert protectd.registry.zones["z1"].zone.spec.policy_limit == 200 * MIB
    assert len(await resize(protectd, "z1", ZoneSize(memory_bytes=513 * MIB))) == 1


async def test_a_host_without_memory_leaves_the_zone_unchanged(
    protectd: Assembly, toolstack: MemoryToolstack
) -> None:
    other = replace(zone_spec(), id="z2", memory_bytes=320 * MIB)
    await protectd.launcher.launch(other)
    uses(toolstack, 256)
    follower = MemoryFollower(protectd.registry, protectd.sizing, protectd.config.memory)
    for _ in range(2):
        await follower.look()
        assert memory(protectd) == 256
    toolstack.failing.add("set_memory")
    uses(toolstack, 1)
    for _ in range(PATIENCE_LOOKS + 1):
        await follower.look()
    assert memory(protectd) == 256, "a failure is no end"


async def test_a_lying_zone_stays_within_its_bounds(protectd: Assembly, toolstack: MemoryToolstack) -> None:
    follower = MemoryFollower(protectd.registry, protectd.sizing, protectd.config.memory)
    size = toolstack.of_zone("z1").agent.size
    for total, available in ((0, 2**64 - 1), (2**64 - 1, 0), (2**64 - 1, 2**64 - 1), (1, 1)):
        for _ in range(PATIENCE_LOOKS + 1):
            size.memory_total_bytes, size.memory_available_bytes = total, available
            await follower.look()
            assert 128 <= memory(protectd) <= 512
    toolstack.kill("z1")
    await follower.look()
