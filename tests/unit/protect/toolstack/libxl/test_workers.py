"""Threads for libxl: a context serves a single call at a time, whatever becomes of the caller."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from protect.toolstack.libxl import workers
from protect.toolstack.libxl.workers import Workers


class FakeContext:
    """xenbind.context.Context without Xen."""

    made: list[FakeContext] = []

    def __init__(self) -> None:
        self.usable = True
        self.closed = False
        self.calls = 0
        self.made.append(self)

    def close(self) -> None:
        assert not self.closed
        self.closed = True


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setattr(workers, "Context", FakeContext)
    monkeypatch.setattr(FakeContext, "made", [])
    pool = Workers(2)
    yield pool
    pool.close()
    assert all(context.closed for context in FakeContext.made)


def use(context: FakeContext, word: str) -> str:
    context.calls += 1
    return word


async def test_a_context_is_used_again(pool: Workers) -> None:
    assert [await pool.run(use, word) for word in "abc"] == ["a", "b", "c"]  # type: ignore[arg-type]
    assert [context.calls for context in FakeContext.made] == [3]


async def test_context_with_lost_events_is_replaced(pool: Workers) -> None:
    def lose(context: FakeContext) -> None:
        context.usable = False

    await pool.run(lose)  # type: ignore[arg-type]
    await pool.run(use, "a")  # type: ignore[arg-type]
    assert [(context.closed, context.calls) for context in FakeContext.made] == [(True, 0), (False, 1)]


async def test_questions_need_no_new_context_without_xenstored(pool: Workers) -> None:
    """The maximal number of concurrent questions, each waiting for another."""
    await pool.open()
    pool.hold()
    together = threading.Barrier(len(FakeContext.made))
    asked = (pool.ask(lambda _: together.wait(60.0)) for _ in FakeContext.made)
    assert sorted(await asyncio.gather(*asked)) == [0, 1]
    with pytest.raises(ConnectionRefusedError):
        await pool.run(use, "a")  # type: ignore[arg-type]


async def test_errors_come_through_and_the_context_comes_back(pool: Workers) -> None:
    def fail(context: FakeContext) -> None:
        raise KeyError("on purpose")

    for _ in range(3):
        with pytest.raises(KeyError, match="on purpose"):
            await pool.run(fail)  # type: ignore[arg-type]
    assert len(FakeContext.made) == 1


async def test_no_context_has_two_calls_and_no_more_are_made_than_threads(pool: Workers) -> None:
    busy: set[FakeContext] = set()

    def work(context: FakeContext) -> None:
        assert context not in busy
        busy.add(context)
        assert len(busy) <= 2
        busy.discard(context)

    await asyncio.gather(*(pool.run(work) for _ in range(50)))  # type: ignore[arg-type]
    assert 1 <= len(FakeContext.made) <= 2


async def test_the_context_of_a_cancelled_caller_stays_with_the_call(pool: Workers) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hang(context: FakeContext) -> None:
        begun.set()
        assert go_on.wait(60)
        context.calls = 100

    calling = asyncio.create_task(pool.run(hang))  # type: ignore[arg-type]
    assert await asyncio.to_thread(begun.wait, 60)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    await pool.run(use, "a")  # type: ignore[arg-type]
    assert [context.calls for context in FakeContext.made] == [0, 1]
    go_on.set()


async def test_a_question_waits_for_no_change(pool: Workers) -> None:
    go_on = threading.Event()

    def hang(context: FakeContext) -> None:
        assert go_on.wait(60)

    changing = [asyncio.create_task(pool.run(hang)) for _ in range(8)]  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(pool.ask(use, "a"), 60) == "a"  # type: ignore[arg-type]
    assert not any(each.done() for each in changing)
    go_on.set()
    await asyncio.gather(*changing)


async def test_contexts_of_a_lost_xenstored_are_replaced(pool: Workers) -> None:
    """Also the context in use, at the end of its call."""
    begun, go = threading.Event(), threading.Event()

    def wait(context: FakeContext) -> None:
        begun.set()
        go.wait(10)

    await pool.run(use, "a")  # type: ignore[arg-type]
    waiting = asyncio.create_task(pool.ask(wait))  # type: ignore[arg-type]
    await asyncio.to_thread(begun.wait, 10)
    pool.renew()
    go.set()
    await waiting
    assert [context.closed for context in FakeContext.made] == [True, True]
    await pool.run(use, "b")  # type: ignore[arg-type]
    assert [context.closed for context in FakeContext.made] == [True, True, False]


async def test_no_context_is_made_without_xenstored(pool: Workers) -> None:
    """Questions to the hypervisor alone still work, with an existing context."""
    await pool.ask(use, "a")  # type: ignore[arg-type]
    pool.hold()
    assert await pool.ask(use, "b") == "b"  # type: ignore[arg-type]
    with pytest.raises(ConnectionRefusedError, match="xenstored does not answer"):
        await pool.run(use, "c")  # type: ignore[arg-type]
    pool.renew()
    assert await pool.run(use, "d") == "d"  # type: ignore[arg-type]
