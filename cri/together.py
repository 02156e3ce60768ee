"""Running steps side by side, and to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")


async def both(first: Coroutine[Any, Any, A], second: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """Run two side by side; when one fails the other is cancelled and awaited, and the failure raised."""
    one, two = asyncio.create_task(first), asyncio.create_task(second)
    try:
        await asyncio.wait((one, two), return_when=asyncio.FIRST_EXCEPTION)
        for task in (one, two):
            if task.done() and not task.cancelled() and (error := task.exception()):
                raise error
        return await one, await two
    finally:
        await _settle(one, two)


async def each(steps: list[Coroutine[Any, Any, A]]) -> list[A]:
    """Run all side by side, each to its end; then raise the first failure, or give all results."""
    results = await asyncio.gather(*steps, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


async def to_end(step: Coroutine[Any, Any, A]) -> A:
    """Run ``step`` to its end even while the caller is being cancelled; the cancellation follows it."""
    task = asyncio.create_task(step)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except Exception:
            break  # task.result() below raises it
    if cancelled is not None:
        # the step's own failure, if any, is the more useful word
        task.result()
        raise cancelled
    return task.result()


async def _settle(*tasks: asyncio.Task[Any]) -> None:
    """Cancel what still runs and wait for its end."""
    for task in tasks:
        task.cancel()
    await to_end(_ended(*tasks))


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
