"""What the words of daemonkit.tasks promise when a caller is cancelled, at any moment and repeatedly."""

from __future__ import annotations

import asyncio
import logging

import pytest

from daemonkit.faults import Refused
from daemonkit.tasks import Background, complete, complete_all, gather, join, race


class Step:
    """A step: waits for a release, and records the end."""

    def __init__(self, error: Exception | None = None) -> None:
        self.begun = asyncio.Event()
        self.release = asyncio.Event()
        self.outcome = "not run"
        self._error = error

    async def run(self) -> str:
        self.begun.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.outcome = "cancelled"
            raise
        self.outcome = "completed"
        if self._error is not None:
            raise self._error
        return "result"


async def turn() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_complete_gives_the_result_or_the_failure() -> None:
    step, failing = Step(), Step(ValueError("no"))
    step.release.set()
    failing.release.set()
    assert await complete(step.run()) == "result"
    with pytest.raises(ValueError, match="no"):
        await complete(failing.run())


@pytest.mark.parametrize("times", [1, 2, 5])
async def test_complete_outlasts_every_cancellation(times: int) -> None:
    step = Step()
    caller = asyncio.ensure_future(complete(step.run()))
    for _ in range(times):
        await turn()
        caller.cancel()
    await turn()
    assert not caller.done()
    step.release.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert step.outcome == "completed"


async def test_complete_runs_work_of_a_caller_cancelled_before_the_start() -> None:
    step = Step()
    step.release.set()

    async def calling() -> None:
        me = asyncio.current_task()
        assert me is not None
        me.cancel()
        await complete(step.run())

    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(calling())
    assert step.outcome == "completed"


async def test_complete_logs_the_failure_of_a_cancelled_callers_work(
    caplog: pytest.LogCaptureFixture,
) -> None:
    step = Step(Refused("stop", "zone z1", "it is stuck"))
    caller = asyncio.ensure_future(complete(step.run()))
    await turn()
    caller.cancel()
    step.release.set()
    with caplog.at_level(logging.WARNING), pytest.raises(asyncio.CancelledError):
        await caller
    assert "it is stuck" in caplog.text


async def test_complete_all_raises_after_the_end_of_every_step() -> None:
    first, second = Step(ValueError("first")), Step(ValueError("second"))
    caller = asyncio.ensure_future(complete_all([first.run(), second.run()]))
    second.release.set()
    await turn()
    assert not caller.done()
    first.release.set()
    with pytest.raises(ValueError, match="first"):
        await caller
    assert (first.outcome, second.outcome) == ("completed", "completed")


async def test_complete_all_completes_although_cancelled() -> None:
    steps = [Step(), Step()]
    caller = asyncio.ensure_future(complete_all(step.run() for step in steps))
    await turn()
    caller.cancel()
    await turn()
    assert not caller.done()
    for step in steps:
        step.release.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert [step.outcome for step in steps] == ["completed", "completed"]


async def test_gather_gives_both_results() -> None:
    first, second = Step(), Step()
    first.release.set()
    second.release.set()
    assert await gather(first.run(), second.run()) == ("result", "result")


@pytest.mark.parametrize("which", [0, 1])
async def test_gather_cancels_the_rest_after_a_failure(which: int) -> None:
    steps = [Step(ValueError("no")), Step(ValueError("no"))]
    steps[which].release.set()
    with pytest.raises(ValueError, match="no"):
        await gather(steps[0].run(), steps[1].run())
    assert steps[1 - which].outcome == "cancelled"


async def test_gather_cancels_both_and_waits_when_the_caller_is_cancelled() -> None:
    first, second = Step(), Step()
    holding = asyncio.Event()

    async def slow_to_end() -> None:
        try:
            await second.run()
        finally:
            await complete(holding.wait())

    caller = asyncio.ensure_future(gather(first.run(), slow_to_end()))
    await turn()
    caller.cancel()
    await turn()
    caller.cancel()
    await turn()
    assert (first.outcome, second.outcome) == ("cancelled", "cancelled")
    assert not caller.done()
    holding.set()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_race_gives_the_winner_and_ends_the_loser() -> None:
    first, second = Step(), Step()
    second.release.set()
    assert await race(first.run(), second.run()) == "result"
    assert first.outcome == "cancelled"


async def test_race_raises_the_winners_error() -> None:
    first, second = Step(), Step(ValueError("over"))
    second.release.set()
    with pytest.raises(ValueError, match="over"):
        await race(first.run(), second.run())
    assert first.outcome == "cancelled"


async def test_race_prefers_the_work_when_both_end_at_once() -> None:
    first, second = Step(), Step(ValueError("over"))
    first.release.set()
    second.release.set()
    assert await race(first.run(), second.run()) == "result"


async def test_race_ends_both_when_the_caller_is_cancelled() -> None:
    first, second = Step(), Step()
    caller = asyncio.ensure_future(race(first.run(), second.run()))
    await turn()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert (first.outcome, second.outcome) == ("cancelled", "cancelled")


async def test_join_leaves_the_work_to_its_owner() -> None:
    step = Step()
    owned = asyncio.ensure_future(step.run())
    caller = asyncio.ensure_future(join(owned))
    await turn()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert not owned.done()
    step.release.set()
    assert await owned == "result"


async def test_a_background_run_is_cancelled_once_and_its_undo_ends() -> None:
    background, step, undo = Background(), Step(), Step()

    async def work() -> None:
        try:
            await step.run()
        finally:
            await undo.run()

    caller = asyncio.ensure_future(background.run(work(), "work"))
    await turn()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert step.outcome == "cancelled"
    assert undo.begun.is_set()
    undo.release.set()
    await background.close(60)
    assert undo.outcome == "completed"


async def test_a_background_failure_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    background, step = Background(), Step(Refused("follow", "zone z1", "it is gone"))
    step.release.set()
    with caplog.at_level(logging.WARNING):
        await asyncio.wait([background.spawn(step.run(), "follow zone z1")])
        await turn()
    assert "follow zone z1" in caplog.text
    assert "it is gone" in caplog.text


async def test_closing_the_background_waits_then_cancels() -> None:
    background, quick, stuck = Background(), Step(), Step()
    background.spawn(quick.run(), "quick")
    background.spawn(stuck.run(), "stuck")
    await turn()
    quick.release.set()
    await background.close(0.05)
    assert (quick.outcome, stuck.outcome) == ("completed", "cancelled")
