"""How tests wait: tests/support/waiting.py."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.waiting import block_until, until


class Third:
    """True at the third call."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> bool:
        self.asked += 1
        return self.asked == 3

    async def later(self) -> bool:
        await asyncio.sleep(0)
        return self()


async def test_until_returns_once_the_condition_holds() -> None:
    one, other, blocking = Third(), Third(), Third()
    await until(one)
    await until(other.later)
    block_until(blocking)
    assert (one.asked, other.asked, blocking.asked) == (3, 3, 3)


async def test_the_error_names_the_awaited_condition() -> None:
    with pytest.raises(TimeoutError, match=r"^not within 0.01 s: the file$"):
        await until(lambda: False, 0.01, "the file")
    with pytest.raises(TimeoutError, match=r"^not within 0.01 s: \['a'\]$"):
        block_until(lambda: False, 0.01, lambda: ["a"])
    with pytest.raises(TimeoutError, match=r"^not within 0 s$"):
        await until(lambda: asyncio.sleep(60), 0)


async def test_an_error_of_the_condition_ends_the_wait() -> None:
    async def fails() -> bool:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="^its own$"):
        await until(fails)
