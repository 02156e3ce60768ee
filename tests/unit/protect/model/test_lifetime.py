"""The end of a lifetime, and the work that it cuts off."""

from __future__ import annotations

import asyncio

import pytest

from daemonkit.faults import Broken, Refused
from protect.model.lifetime import End


async def test_work_before_the_end_is_untouched() -> None:
    end = End()
    async with end.bounding("use", "zone z"):
        await asyncio.sleep(0)
    end.declare("over")
    assert end and end.cause == "over"


async def test_work_under_way_is_cut_off_with_the_first_cause() -> None:
    end = End()
    begun, undone = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        async with end.bounding("use", "zone z"):
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                undone.set()

    tasks = [asyncio.ensure_future(work()) for _ in range(3)]
    await begun.wait()
    end.declare("it crashed")
    end.declare("later")
    for task in tasks:
        with pytest.raises(Refused, match="it crashed"):
            await task
        assert not task.cancelled()
    assert undone.is_set()


async def test_no_work_begins_after_the_end() -> None:
    end = End()
    end.declare("it crashed")
    ran = False
    with pytest.raises(Refused, match="it crashed"):
        async with end.bounding("use", "zone z"):
            ran = True
    assert not ran


async def test_a_failure_because_of_the_end_is_told_as_the_end() -> None:
    end = End()
    with pytest.raises(Refused, match="it crashed"):
        async with end.bounding("use", "zone z"):
            end.declare("it crashed")
            raise Broken("call", "zone z", "the link is down")


@pytest.mark.parametrize("failure", [Broken("call", "zone z", "no"), TimeoutError()])
async def test_other_failures_are_unchanged(failure: Exception) -> None:
    with pytest.raises(type(failure)):
        async with End().bounding("use", "zone z"):
            raise failure


async def test_a_cancelled_caller_is_cancelled() -> None:
    end, begun = End(), asyncio.Event()

    async def work() -> None:
        async with end.bounding("use", "zone z"):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(work())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    end.declare("over")  # nothing left to cut off
