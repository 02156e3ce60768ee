"""Pools of several tenants: the share of a tenant, waiting, and the order of turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemonkit.shares import FairSlots, Holding, Shares


async def _step() -> None:
    """Let all runnable tasks run."""
    for _ in range(10):
        await asyncio.sleep(0)


def _greedy(shares: Shares, tenant: str) -> int:
    while shares.take(tenant):
        pass
    return shares.held(tenant)


def test_each_tenant_gets_half_of_the_free_part() -> None:
    shares = Shares(32)
    assert [_greedy(shares, f"t{number}") for number in range(6)] == [16, 8, 4, 2, 1, 1]


def test_a_pool_with_a_single_slot_serves_a_single_tenant() -> None:
    shares = Shares(1)
    assert shares.take("a") and not shares.take("b")
    shares.give("a")
    assert shares.take("b")


def test_a_holding_gives_back_exactly_its_amount() -> None:
    shares = Shares(100)
    holding = Holding(shares, "a")
    assert holding.grow(30) and holding.grow(20) and not holding.grow(20)
    holding.at_most(40)
    assert shares.held("a") == 40
    holding.close()
    holding.close()
    assert shares.free == 100 and not holding.grow(1)


@given(
    st.integers(1, 100),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 20), st.booleans()), max_size=100),
)
def test_shares_are_never_lost_and_a_newcomer_gets_half_of_the_rest(
    total: int, steps: list[tuple[str, int, bool]]
) -> None:
    shares, held = Shares(total), dict.fromkeys("abc", 0)
    for tenant, amount, take in steps:
        if take and shares.take(tenant, amount):
            held[tenant] += amount
            assert held[tenant] <= shares.free + amount
        elif not take and held[tenant] >= amount:
            shares.give(tenant, amount)
            held[tenant] -= amount
        assert shares.free == total - sum(held.values())
        assert {tenant: shares.held(tenant) for tenant in "abc"} == held
    free = shares.free
    assert not free or shares.take("newcomer", free // 2 or 1)


class _Holders:
    """Callers that hold a slot until the test's signal. ``order``: holders in their order."""

    def __init__(self, slots: FairSlots) -> None:
        self._slots = slots
        self.order: list[str] = []
        self._leave: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, *callers: str) -> None:
        """Callers; the first letter is their tenant."""
        for caller in callers:
            self._leave[caller] = asyncio.Event()
            self.tasks[caller] = asyncio.create_task(self._hold(caller))
            await _step()

    async def _hold(self, caller: str) -> None:
        async with self._slots.slot(caller[0]):
            self.order.append(caller)
            await self._leave[caller].wait()

    async def go(self, *callers: str) -> None:
        for caller in callers:
            self._leave[caller].set()
            await self.tasks[caller]
            await _step()


@pytest.fixture
def holders() -> Callable[[int], _Holders]:
    return lambda total: _Holders(FairSlots(total))


async def test_tenant_with_a_full_share_waits_and_others_go_on(holders: Callable[[int], _Holders]) -> None:
    some = holders(4)
    await some.come("a1", "a2", "a3", "a4", "b1")
    assert some.order == ["a1", "a2", "b1"]
    await some.go("a1")
    assert some.order[-1] == "a3"


async def test_the_tenant_with_the_least_is_next(holders: Callable[[int], _Holders]) -> None:
    some = holders(3)
    await some.come("a1", "b1", "c1", "a2", "a3", "d1", "e1")
    assert some.order == ["a1", "b1", "c1"]
    await some.go("b1", "c1")
    assert some.order[3:] == ["d1", "e1"]
    await some.go("d1", "e1", "a1")
    assert some.order[5:] == ["a2", "a3"]


async def test_a_cancelled_waiter_leaves_its_turn_to_the_next(holders: Callable[[int], _Holders]) -> None:
    some = holders(1)
    await some.come("a1", "b1", "b2")
    some.tasks["b1"].cancel()
    await some.go("a1")
    assert some.order == ["a1", "b2"]


async def test_the_slot_of_a_waiter_cancelled_at_its_turn_is_free() -> None:
    slots = FairSlots(1)
    held = slots.slot("a")
    await held.__aenter__()
    waiting = asyncio.create_task(slots.slot("b").__aenter__())
    await _step()
    # The caller has the slot now, and has not continued yet.
    await held.__aexit__(None, None, None)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(60), slots.slot("c"):
        pass
