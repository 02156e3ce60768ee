"""Pulls under way: shared, cancelled with their last caller, told about, and failing as Faults."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from daemonkit.faults import Broken, Exhausted, TooLate, Unreachable
from images.image_settings import ImageSettings
from images.pull.progress import Progress
from images.pull.pulls import MAX_PULLS, Pulls


@pytest.fixture
def pulls() -> Pulls:
    return Pulls(ImageSettings(Path("/nowhere")))


async def _step() -> None:
    """Let all runnable tasks run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_caller_during_the_clean_up_of_a_cancelled_pull_begins_anew(pulls: Pulls) -> None:
    cleaned = asyncio.Event()

    async def slow(_: Progress) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await cleaned.wait()
        return "never"

    async def quick(_: Progress) -> str:
        return "done"

    first = asyncio.create_task(pulls.run("k", "image", slow))
    await _step()
    first.cancel()
    await _step()
    assert pulls._tasks and pulls.snapshots() == []
    assert await pulls.run("k", "image", quick) == "done"
    cleaned.set()
    await pulls.drain()
    assert not pulls._tasks


async def test_stopping_ends_pulls_and_tells_their_callers(pulls: Pulls) -> None:
    async def endless(_: Progress) -> None:
        await asyncio.Event().wait()

    callers = [asyncio.create_task(pulls.run("k", "image", endless)) for _ in range(2)]
    await _step()
    async with asyncio.timeout(60):
        await pulls.stop()
        for caller in callers:
            with pytest.raises(Unreachable, match="called off"):
                await caller
    assert not pulls._tasks


@pytest.mark.parametrize(("number", "fault"), [(errno.ENOSPC, Exhausted), (errno.EIO, Broken)])
async def test_errors_of_the_system_are_faults(pulls: Pulls, number: int, fault: type[Exception]) -> None:
    async def fail(_: Progress) -> None:
        raise OSError(number, "no")

    with pytest.raises(fault):
        await pulls.run("k", "image", fail)


async def test_a_pull_without_a_turn_names_the_full_share(
    pulls: Pulls, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def endless(_: Progress) -> None:
        await asyncio.Event().wait()

    running = [pulls.run(number, "image", endless, registry="evil") for number in range(MAX_PULLS // 2)]
    tasks = [asyncio.create_task(each) for each in running]
    await _step()
    # Running pulls keep their hour.
    monkeypatch.setattr(pulls, "_settings", ImageSettings(Path("/nowhere"), pull_seconds=0.1))
    with pytest.raises(TooLate, match=r"other images of evil have its share of the 32 pulls at once"):
        await pulls.run("late", "image", endless, registry="evil")
    await pulls.stop()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_pulls_of_a_registry_leave_turns_to_other_registries(pulls: Pulls) -> None:
    begun = []

    async def endless(_: Progress) -> None:
        begun.append(1)
        await asyncio.Event().wait()

    async def quick(_: Progress) -> str:
        return "done"

    evil = [
        asyncio.create_task(pulls.run(n, "image", endless, registry="evil")) for n in range(MAX_PULLS + 1)
    ]
    await _step()
    assert len(begun) == MAX_PULLS // 2
    assert await pulls.run("k", "image", quick, registry="honest") == "done"
    await pulls.stop()
    await asyncio.gather(*evil, return_exceptions=True)


async def test_each_begin_and_each_end_is_a_change(pulls: Pulls) -> None:
    end = asyncio.Event()

    async def work(_: Progress) -> None:
        await end.wait()

    before = pulls.next_change()
    caller = asyncio.create_task(pulls.run("k", "image", work))
    await _step()
    begun = pulls.next_change()
    assert before.is_set() and not begun.is_set()
    assert [snapshot.name for snapshot in pulls.snapshots()] == ["image"]
    end.set()
    await caller
    await _step()
    assert begun.is_set() and pulls.snapshots() == []
