"""Waiting for a condition that has no event: a file, another process, the kernel.

If there is an event, await the event.
"""

from __future__ import annotations

import time
from asyncio import sleep, timeout
from collections.abc import Awaitable, Callable, Iterator
from inspect import isawaitable
from itertools import repeat
from typing import TypeVar

T = TypeVar("T")
Condition = Callable[[], object] | Callable[[], Awaitable[object]]
"""True or not by its result; may be asynchronous."""
PATIENCE = 60.0
_PAUSES = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
"""Seconds between two looks; the last pause repeats."""


async def until(condition: Condition, seconds: float = PATIENCE, what: object = "") -> None:
    """Check again and again. TimeoutError: the condition is false after ``seconds``.

    The error shows ``what``, the subject of the wait, or the result of ``what()`` in the end.
    """
    pauses, deadline = _pauses(), timeout(seconds)
    try:
        async with deadline:
            while not await _holds(condition):  # noqa: ASYNC110 - there is no event
                await sleep(next(pauses))
    except TimeoutError:
        if not deadline.expired():  # the condition raised it
            raise
        raise _too_late(seconds, what) from None


async def found(look: Callable[[], Awaitable[T | None]], seconds: float = PATIENCE, what: object = "") -> T:
    """The first true result of ``look``.  TimeoutError: as ``until``."""
    result: T | None = None

    async def seen() -> object:
        nonlocal result
        result = await look()
        return result

    await until(seen, seconds, what)
    assert result is not None
    return result


def block_until(condition: Callable[[], object], seconds: float = PATIENCE, what: object = "") -> None:
    """``until`` for a thread without an event loop."""
    pauses, end = _pauses(), time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise _too_late(seconds, what)
        time.sleep(next(pauses))


async def _holds(condition: Condition) -> object:
    result = condition()
    return await result if isawaitable(result) else result


def _pauses() -> Iterator[float]:
    yield from _PAUSES
    yield from repeat(_PAUSES[-1])


def _too_late(seconds: float, what: object) -> TimeoutError:
    shown = what() if callable(what) else what
    return TimeoutError(f"not within {seconds:g} s" + (f": {shown}" if shown != "" else ""))
