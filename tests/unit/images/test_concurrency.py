"""Threads that stop with their cancelled caller, work shared by concurrent callers, and its failures."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Iterator

import pytest

from daemonkit.faults import Broken
from images.bounds.cancel import CancelToken
from images.concurrency import SingleFlight, WorkerThreads, task_group
from images.image_errors import Cancelled


class _Work:
    """Counts its runs; each run lasts until its release."""

    def __init__(self) -> None:
        self.runs = 0
        self.started = asyncio.Event()
        self.release = asyncio.Event()

    async def __call__(self) -> str:
        self.runs += 1
        self.started.set()
        await self.release.wait()
        return "done"


@pytest.fixture
def threads() -> Iterator[WorkerThreads]:
    pool = WorkerThreads(1)
    yield pool
    pool.close()


async def _step() -> None:
    """Let all runnable tasks run."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_many_callers_share_a_single_run() -> None:
    shared: SingleFlight[str] = SingleFlight()
    work = _Work()
    tasks = [asyncio.create_task(shared.run("k", work)) for _ in range(8)]
    await _step()
    work.release.set()
    assert await asyncio.gather(*tasks) == ["done"] * 8
    assert work.runs == 1
    assert await shared.run("k", work) == "done"
    assert work.runs == 2


async def test_an_error_of_a_thread_does_not_keep_the_variables_of_its_calls(threads: WorkerThreads) -> None:
    class Document:
        pass

    left: list[weakref.ref[Document]] = []

    def fails(_: CancelToken) -> None:
        document = Document()
        left.append(weakref.ref(document))
        try:
            raise ValueError
        except ValueError as error:
            raise Broken("read", "x", "it is wrong") from error

    with pytest.raises(Broken) as failed:
        await threads.run(fails)
    assert isinstance(failed.value.__cause__, ValueError)
    assert [one() for one in left] == [None]


async def test_a_self_caused_error_is_raised_like_any_other(threads: WorkerThreads) -> None:
    def fails(_: CancelToken) -> None:
        first, second = ValueError("first"), ValueError("second")
        first.__cause__, second.__cause__ = second, first
        raise first

    async with asyncio.timeout(60):
        with pytest.raises(ValueError, match="first"):
            await threads.run(fails)


async def test_keys_do_not_wait_for_each_other() -> None:
    shared: SingleFlight[str] = SingleFlight()
    slow, quick = _Work(), _Work()
    waiting = asyncio.create_task(shared.run("slow", slow))
    await slow.started.wait()
    quick.release.set()
    assert await shared.run("quick", quick) == "done"
    slow.release.set()
    assert await waiting == "done"


async def test_a_failure_is_not_the_waiters_who_then_do_the_work_themselves() -> None:
    shared: SingleFlight[str] = SingleFlight()
    hostile, honest = _Work(), _Work()

    async def fail() -> str:
        await hostile()
        raise Broken("x", "y", "z")

    failing = asyncio.create_task(shared.run("k", fail))
    await hostile.started.wait()
    waiting = [asyncio.create_task(shared.run("k", honest)) for _ in range(2)]
    await _step()
    assert honest.runs == 0
    hostile.release.set()
    with pytest.raises(Broken):
        await failing
    # Side by side, without waiting for each other.
    await _step()
    assert honest.runs == 2
    honest.release.set()
    assert await asyncio.gather(*waiting) == ["done", "done"]


async def test_when_the_first_caller_is_cancelled_another_begins_anew() -> None:
    shared: SingleFlight[str] = SingleFlight()
    first, second = _Work(), _Work()
    second.release.set()
    one = asyncio.create_task(shared.run("k", first))
    await first.started.wait()
    two, three = (asyncio.create_task(shared.run("k", second)) for _ in range(2))
    await _step()
    one.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one
    assert [await two, await three] == ["done", "done"]
    assert (first.runs, second.runs) == (1, 1)


async def test_nobody_begins_anew_before_the_first_has_ended(threads: WorkerThreads) -> None:
    shared: SingleFlight[str] = SingleFlight()
    begun, end = threading.Event(), threading.Event()

    def stubborn(token: CancelToken) -> str:
        begun.set()
        assert end.wait(60)
        token.check()
        return "never"

    second = _Work()
    second.release.set()
    one = asyncio.create_task(shared.run("k", lambda: threads.run(stubborn)))
    await asyncio.to_thread(begun.wait, 60)
    two = asyncio.create_task(shared.run("k", second))
    await _step()
    one.cancel()
    await _step()
    assert not one.done() and second.runs == 0
    end.set()
    assert await two == "done"
    assert one.cancelled()


async def test_a_cancelled_waiter_leaves_at_once() -> None:
    shared: SingleFlight[str] = SingleFlight()
    work = _Work()
    one = asyncio.create_task(shared.run("k", work))
    await work.started.wait()
    two = asyncio.create_task(shared.run("k", work))
    await _step()
    two.cancel()
    with pytest.raises(asyncio.CancelledError):
        await two
    assert not one.done()
    work.release.set()
    assert await one == "done"


async def test_a_cancelled_caller_has_its_thread_stopped(threads: WorkerThreads) -> None:
    begun, stopped = threading.Event(), threading.Event()

    def work(token: CancelToken) -> None:
        begun.set()
        try:
            token.sleep(300)
        finally:
            stopped.set()

    running = asyncio.create_task(threads.run(work))
    await asyncio.to_thread(begun.wait, 60)
    running.cancel()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert stopped.is_set()
    assert await threads.run(lambda _: "free") == "free"


async def test_a_blocked_system_call_is_ended(threads: WorkerThreads) -> None:
    begun, blocked = threading.Event(), threading.Event()

    def work(token: CancelToken) -> None:
        with token.unblocking(blocked.set):
            begun.set()
            blocked.wait(10)
        token.check()

    running = asyncio.create_task(threads.run(work))
    await asyncio.to_thread(begun.wait, 60)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert blocked.is_set()


async def test_cancelled_work_without_a_thread_never_begins(threads: WorkerThreads) -> None:
    begun, end, ran = threading.Event(), threading.Event(), threading.Event()

    def hold(_: CancelToken) -> None:
        begun.set()
        assert end.wait(60)

    holding = asyncio.create_task(threads.run(hold))
    await asyncio.to_thread(begun.wait, 60)
    waiting = asyncio.create_task(threads.run(lambda _: ran.set()))
    await _step()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    end.set()
    await holding
    await threads.run(lambda _: None)
    assert not ran.is_set()


async def test_the_failure_of_a_thread_is_raised(threads: WorkerThreads) -> None:
    def work(_: CancelToken) -> None:
        raise Broken("x", "y", "z")

    with pytest.raises(Broken):
        await threads.run(work)


def test_cancelled_work_does_not_begin() -> None:
    token = CancelToken()
    token.cancel()
    with pytest.raises(Cancelled), token.unblocking(lambda: None):
        raise AssertionError("begun")
    with pytest.raises(Cancelled):
        token.check()
    with pytest.raises(Cancelled):
        token.sleep(300)


def test_nothing_is_unblocked_after_its_body() -> None:
    token, called = CancelToken(), []
    with token.unblocking(lambda: called.append(1)):
        pass
    token.cancel()
    assert called == []


async def test_a_group_raises_the_first_failure() -> None:
    ended = []

    async def fail(message: str) -> None:
        raise Broken("x", "y", message)

    async def last() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")
            await fail("second")

    with pytest.raises(Broken, match="first") as caught:
        async with task_group() as group:
            group.create_task(last())
            await asyncio.sleep(0)
            group.create_task(fail("first"))
            await asyncio.Event().wait()
    assert ended == ["cancelled"]
    assert caught.value.cause == "first"
