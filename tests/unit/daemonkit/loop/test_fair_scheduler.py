"""Turns of zones: the zone with the least use is first, and waits for a slice of the others at most."""

from __future__ import annotations

import asyncio
import functools
import gc
import warnings
from collections.abc import Callable, Iterator

import pytest

from daemonkit.loop import cpu_clock, fair_scheduler
from daemonkit.loop.fair_scheduler import (
    ASKED_SECONDS,
    CARRIED_SECONDS,
    REST_SECONDS,
    REST_SLICE_SECONDS,
    SLICE_SECONDS,
    STEP_SECONDS,
    FairScheduler,
    Share,
)
from daemonkit.loop.in_flight import InFlight
from daemonkit.tasks import gather, race


class Clock:
    """Time that passes only by work."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    thread_time = perf_counter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(fair_scheduler, "time", clock)
    monkeypatch.setattr(cpu_clock, "time", clock)
    yield clock


class Hog:
    """A zone with endless work; each step takes ``seconds``."""

    def __init__(
        self, scheduler: FairScheduler, clock: Clock, seconds: float = STEP_SECONDS, weight: float = 1.0
    ) -> None:
        self.share = scheduler.share(weight=weight)
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


async def test_a_modest_zone_waits_for_a_slice_of_the_others_alone(clock: Clock) -> None:
    """The zone does not wait for a step of every other zone, as in an iteration that serves all."""
    scheduler = FairScheduler()
    share = scheduler.share()
    hogs = [Hog(scheduler, clock) for _ in range(20)]
    await iterations(200)

    async def call() -> float:
        begun = clock.now
        for _ in range(4):
            await asyncio.sleep(0)
        return clock.now - begun

    for _ in range(20):
        took = await share.run(call)
        assert took <= 4 * 2 * (SLICE_SECONDS + STEP_SECONDS), (
            "four iterations, each with two slices at the most"
        )
        await iterations(20)
    for hog in hogs:
        await hog.stop()


async def test_shares_are_of_time_not_of_steps(clock: Clock) -> None:
    scheduler = FairScheduler()
    hogs = [
        Hog(scheduler, clock, seconds) for seconds in (2 * STEP_SECONDS, STEP_SECONDS, STEP_SECONDS / 2) * 4
    ]
    begun = clock.now
    while clock.now - begun < 3000 * STEP_SECONDS:  # noqa: ASYNC110 - iterations of the loop are what is meant
        await asyncio.sleep(0)
    used = [hog.steps * hog.seconds for hog in hogs]
    assert max(used) - min(used) < 20 * STEP_SECONDS, used
    for hog in hogs:
        await hog.stop()


async def test_a_garbage_collection_is_charged_to_no_zone(clock: Clock) -> None:
    """One collects the garbage of the whole daemon: up to 200 ms."""

    def collecting(phase: str, _info: dict[str, int]) -> None:
        clock.now += 0.2 if phase == "start" else 0.0

    async def work() -> None:
        clock.now += STEP_SECONDS
        gc.collect()

    share = FairScheduler().share(carried=0.0)
    gc.callbacks.append(collecting)
    try:
        await share.run(work)
    finally:
        gc.callbacks.remove(collecting)
    assert share.used == pytest.approx(STEP_SECONDS)


async def test_a_share_of_weight_four_gets_the_time_of_four_zones(clock: Clock) -> None:
    scheduler = FairScheduler()
    heavy = Hog(scheduler, clock, weight=4)
    hogs = [Hog(scheduler, clock) for _ in range(16)]
    await iterations(4000)
    assert [hog.steps for hog in hogs] == pytest.approx([heavy.steps / 4] * 16, rel=0.05)
    for hog in (heavy, *hogs):
        await hog.stop()


async def test_a_zone_alone_has_the_whole_loop(clock: Clock) -> None:
    """The zone pauses for an iteration or two after each slice; the loop is idle in the pause."""
    scheduler = FairScheduler()
    hog = Hog(scheduler, clock)
    await iterations(1000)
    assert hog.steps > 500
    await hog.stop()


async def test_a_sleeping_zone_saves_up_only_a_little(clock: Clock) -> None:
    scheduler = FairScheduler()
    sleeper = scheduler.share()
    hog = Hog(scheduler, clock)
    await iterations(2000)
    late = Hog(scheduler, clock)
    late.share.used = sleeper.used  # idle since the start
    before, hog_before = late.steps, hog.steps
    await iterations(400)
    ahead = (late.steps - before) - (hog.steps - hog_before)
    assert ahead * STEP_SECONDS <= fair_scheduler.CARRIED_SECONDS + 4 * SLICE_SECONDS
    for one in (hog, late):
        await one.stop()


async def test_a_cancellation_waits_for_no_turn(clock: Clock) -> None:
    scheduler = FairScheduler()
    hogs = [Hog(scheduler, clock, 10 * SLICE_SECONDS) for _ in range(3)]
    await iterations(20)
    share = scheduler.share()
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


async def test_results_errors_and_timeouts_come_from_the_work() -> None:
    share = FairScheduler().share()

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
    share = FairScheduler().share()
    share.begin()
    assert not share.enough()
    clock.now += STEP_SECONDS
    assert share.enough()
    share.begin()
    pieces = [share.enough() for _ in range(fair_scheduler.STEP_PIECES)]
    assert pieces == [False] * (fair_scheduler.STEP_PIECES - 1) + [True]


async def test_shares_begin_where_the_others_are() -> None:
    scheduler = FairScheduler()
    first = scheduler.share()
    scheduler.charge(first, 5.0)
    scheduler.free(first)
    second: Share = scheduler.share()
    assert second.used <= first.used


def test_dropped_work_is_closed() -> None:
    """The loop was stopped in the midst of its work."""
    closed = []

    async def work() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(True)

    running = FairScheduler().share().run(work)
    running.send(None)
    running.close()
    assert closed == [True]


class Rests:
    """Counts the rests of the loop, which last until the test continues."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self.lengths: list[float] = []
        self._waiting: list[Callable[[], object]] = []
        real = loop.call_later

        def call_later(delay: float, callback: Callable[..., object], *arguments: object) -> object:
            if delay != REST_SECONDS:
                return real(delay, callback, *arguments)
            self.lengths.append(delay)
            self._waiting.append(functools.partial(callback, *arguments))
            return None

        monkeypatch.setattr(loop, "call_later", call_later)

    async def over(self) -> None:
        """End the present rest, and run the ready work."""
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()
        await iterations(20)


async def test_the_loop_rests_while_calls_are_under_way(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests, in_flight = Rests(monkeypatch), InFlight(after=0.0)
    scheduler = FairScheduler(in_flight)
    hogs = [Hog(scheduler, clock) for _ in range(20)]
    with in_flight.call():
        await iterations(100)
        begun = clock.now
        for _ in range(50):
            await iterations(20)  # nothing runs during a rest of any length
            await rests.over()
        assert len(rests.lengths) >= 50
        assert clock.now - begun <= 51 * (REST_SLICE_SECONDS + STEP_SECONDS)
        assert clock.now - begun >= 49 * (REST_SLICE_SECONDS - STEP_SECONDS), (
            "a share of the time is theirs all the same"
        )
    await rests.over()
    begun = clock.now
    await iterations(1000)
    assert clock.now - begun > 300 * SLICE_SECONDS, "all of it once the call has ended"
    for hog in hogs:
        await hog.stop()


async def test_a_long_step_is_followed_by_more_rests(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    rests, in_flight = Rests(monkeypatch), InFlight()
    scheduler = FairScheduler(in_flight)
    with in_flight.call():
        hogs = [Hog(scheduler, clock, 8 * REST_SLICE_SECONDS) for _ in range(5)]
        await iterations(20)
        begun = clock.now
        for _ in range(80):
            await rests.over()
        assert clock.now - begun <= (80 + 8) * REST_SLICE_SECONDS
    for hog in hogs:
        await hog.stop()


async def test_a_zone_does_not_wait_once_the_rests_are_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rests, in_flight = Rests(monkeypatch), InFlight()
    scheduler = FairScheduler(in_flight)
    with in_flight.call():
        scheduler.charge(scheduler.share(), 8 * REST_SLICE_SECONDS)
        late = scheduler.share(carried=0.0)
        assert not scheduler.free(late), "the rests after a long step are not over"
        for _ in range(10):
            await rests.over()
        assert scheduler.free(late)


async def test_answers_to_calls_do_not_wait_for_rests_of_other_zones(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests, in_flight = Rests(monkeypatch), InFlight()
    scheduler = FairScheduler(in_flight)
    with in_flight.call():
        hogs = [Hog(scheduler, clock) for _ in range(20)]
        honest = Hog(scheduler, clock)
        for _ in range(100):
            await rests.over()  # the saved time is used up
        before, hogs_before = honest.steps, sum(hog.steps for hog in hogs)
        honest.share.asked()
        await iterations(40)
        ahead = honest.steps - before
        assert ASKED_SECONDS / STEP_SECONDS - 3 <= ahead <= ASKED_SECONDS / STEP_SECONDS + 1
        assert sum(hog.steps for hog in hogs) == hogs_before
        for _ in range(1000):
            honest.share.asked()
        before = honest.steps
        await iterations(400)
        assert (honest.steps - before) * STEP_SECONDS <= CARRIED_SECONDS + STEP_SECONDS, (
            "not more than anybody may have in store"
        )
    for hog in (honest, *hogs):
        await hog.stop()


async def test_a_share_pays_for_tasks_of_its_work(clock: Clock) -> None:
    scheduler = FairScheduler()
    share = scheduler.share(carried=0.0)

    async def child() -> None:
        clock.now += 0.5

    async def work() -> None:
        await race(child(), asyncio.sleep(60))
        await gather(child(), child())
        fair_scheduler.charge(0.25)

    await share.pay(work)
    assert share.used == pytest.approx(1.75)
    await race(child(), asyncio.sleep(60))
    fair_scheduler.charge(1.0)
    assert share.used == pytest.approx(1.75), "nobody pays outside of it"


async def test_work_without_a_start_is_closed() -> None:
    """Otherwise Python complains of a coroutine without an await."""
    share = FairScheduler().share()

    async def work() -> None:
        spawned = asyncio.ensure_future(race(never(), never()))
        await asyncio.sleep(0)
        spawned.cancel()
        await asyncio.wait([spawned])

    async def never() -> None:
        await asyncio.Event().wait()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await share.pay(work)
        gc.collect()


async def test_a_step_of_paid_work_is_interrupted(clock: Clock) -> None:
    share, steps = FairScheduler().share(), 0

    async def work() -> None:
        nonlocal steps
        for _ in range(3):
            clock.now += STEP_SECONDS
            await fair_scheduler.pause()
        steps = 3

    running = asyncio.ensure_future(share.pay(work))
    await asyncio.sleep(0)
    assert steps == 0, "it was interrupted"
    await running
    assert steps == 3
