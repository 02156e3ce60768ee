"""Two things at once, of which the first to finish ends the other."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def first_of(work: Coroutine[Any, Any, Any], other: Coroutine[Any, Any, Any]) -> bool:
    """Run both until one ends, and end the other; True if ``work`` came to its end.

    What the one that ended raised is raised; of two at once, ``work``'s.
    """
    tasks = (asyncio.ensure_future(work), asyncio.ensure_future(other))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        winner = tasks[0] if tasks[0].done() else tasks[1]
    finally:
        await _end(*tasks)
    winner.result()
    return winner is tasks[0]


async def _end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel what runs, and wait until it has ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
