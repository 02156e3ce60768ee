"""Turns of zones: who used least goes first, and nobody waits for more than a slice of others' steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from protect.channel import turns
from protect.channel.turns import SLICE, STEP, Share, Turns


class Clock:
    """Time that passes only by work."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(turns, "time", clock)
    yield clock


class Hog:
    """A zone that always has more to do; each step takes ``seconds``."""

    def __init__(self, all_turns: Turns, clock: Clock, seconds: float = STEP) -> None:
        self.share = all_turns.share()
        self.steps = 0
        self.seconds = seconds
        self._clock = clock
        self._task = asyncio.create_task(self.share.run(self._work))

    async def _work(self) -> None:
        while True:
            self.steps += 1
            self._clock.now += self.seconds
            await asyncio.sleep(0)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        assert self._task.cancelled()


async def iterations(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_zone_that_wants_little_waits_for_a_slice_of_the_others_alone(clock: Clock) -> None:
    """Not for a step of each of them, as it would if all were served in one iteration."""
    all_turns = Turns()
    share = all_turns.share()
    hogs = [Hog(all_turns, clock) for _ in range(20)]
    await iterations(200)

    async def call() -> float:
        begun = clock.now
        for _ in range(4):
            await asyncio.sleep(0)
        return clock.now - begun

    for _ in range(20):
        took = await share.run(call)
        assert took <= 4 * 2 * (SLICE + STEP), "four iterations, each with two slices at the most"
        await iterations(20)
    for hog in hogs:
        await hog.stop()


async def test_time_not_steps_is_what_is_shared(clock: Clock) -> None:
    all_turns = Turns()
    hogs = [Hog(all_turns, clock, seconds) for seconds in (2 * STEP, STEP, STEP / 2) * 4]
    begun = clock.now
    while clock.now - begun < 3000 * STEP:  # noqa: ASYNC110 - iterations of the loop are what is meant
        await asyncio.sleep(0)
    used = [hog.steps * hog.seconds for hog in hogs]
    assert max(used) - min(used) < 20 * STEP, used
    for hog in hogs:
        await hog.stop()


async def test_a_zone_alone_has_the_whole_loop(clock: Clock) -> None:
    """It pauses for an iteration or two after each slice, in which nothing else is done."""
    all_turns = Turns()
    hog = Hog(all_turns, clock)
    await iterations(1000)
    assert hog.steps > 500 and not all_turns.resting
    await hog.stop()


@pytest.mark.parametrize("count", [1, 5])
async def test_beside_others_zones_rest_for_as_long_as_they_worked(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """What they have done for them is at most half of a CPU; whoever has used less does not wait for it."""
    rests: list[float] = []
    loop = asyncio.get_running_loop()
    later = loop.call_later

    def rest(delay: float, callback: Callable[..., object], *arguments: Any) -> asyncio.TimerHandle:
        rests.append(delay)
        clock.now += delay
        return later(0, callback, *arguments)

    monkeypatch.setattr(loop, "call_later", rest)
    all_turns = Turns()
    share = all_turns.share()
    hogs = [Hog(all_turns, clock) for _ in range(count)]
    begun = clock.now
    for _ in range(200):
        await share.run(lambda: asyncio.sleep(0))
        await iterations(20)
    worked = clock.now - begun - sum(rests)
    assert worked > 50 * turns.SPELL
    assert 0.9 * worked < sum(rests) + turns.SPELL
    for hog in hogs:
        await hog.stop()


async def test_whoever_used_less_goes_on_while_the_others_rest(clock: Clock) -> None:
    all_turns = Turns()
    share = all_turns.share()
    hogs = [Hog(all_turns, clock) for _ in range(2)]
    while not all_turns.resting:  # noqa: ASYNC110 - iterations of the loop are what is meant
        await asyncio.sleep(0)
    before = sum(hog.steps for hog in hogs)
    for _ in range(20):
        await share.run(lambda: asyncio.sleep(0))
    assert all_turns.resting
    assert sum(hog.steps for hog in hogs) - before <= len(hogs), "what one was short of the other"
    for hog in hogs:
        await hog.stop()


async def test_who_slept_has_no_more_in_store_than_a_little(clock: Clock) -> None:
    all_turns = Turns()
    sleeper = all_turns.share()
    hog = Hog(all_turns, clock)
    await iterations(2000)
    late = Hog(all_turns, clock)
    late.share.used = sleeper.used  # it was there from the start, and did nothing
    before, hog_before = late.steps, hog.steps
    await iterations(400)
    ahead = (late.steps - before) - (hog.steps - hog_before)
    assert ahead * STEP <= turns.CARRIED + 4 * SLICE
    for one in (hog, late):
        await one.stop()


async def test_a_cancellation_waits_for_no_turn(clock: Clock) -> None:
    all_turns = Turns()
    hogs = [Hog(all_turns, clock, 10 * SLICE) for _ in range(3)]
    await iterations(20)
    share = all_turns.share()
    share.used = 1e9
    undone = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            undone.append(share)

    task = asyncio.create_task(share.run(work))
    await iterations(10)
    task.cancel()
    await iterations(2)
    assert task.cancelled()
    for hog in hogs:
        await hog.stop()


async def test_results_errors_and_timeouts_are_those_of_the_work() -> None:
    share = Turns().share()

    async def value() -> int:
        await asyncio.sleep(0)
        return 7

    async def error() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    async def late() -> str:
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            return "late"
        return ""

    assert await share.run(value) == 7
    assert await share.run(late) == "late"
    with pytest.raises(KeyError):
        await share.run(error)
    assert await asyncio.gather(*(share.run(value) for _ in range(3))) == [7, 7, 7]


def test_a_step_ends_by_its_time_or_its_pieces(clock: Clock) -> None:
    share = Turns().share()
    share.begin()
    assert not share.enough()
    clock.now += STEP
    assert share.enough()
    share.begin()
    pieces = [share.enough() for _ in range(turns.STEP_PIECES)]
    assert pieces == [False] * (turns.STEP_PIECES - 1) + [True]


async def test_shares_begin_where_the_others_are() -> None:
    all_turns = Turns()
    first = all_turns.share()
    all_turns.charge(first, 5.0)
    all_turns.free(first)
    second: Share = all_turns.share()
    assert second.used <= first.used


def test_work_that_is_thrown_away_is_closed() -> None:
    """As at the end of a loop that was stopped in the midst of it."""
    closed = []

    async def work() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(True)

    running = Turns().share().run(work)
    running.send(None)
    running.close()
    assert closed == [True]
