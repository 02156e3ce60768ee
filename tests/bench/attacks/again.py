"""Attacks are tried again without end: to be refused, or late, is the defence."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import grpc.aio

OUTCOMES: Counter[str] = Counter()
"""Outcomes of this process's calls."""
BEGUN = asyncio.Event()
"""Whether preparations are over."""
PAUSE = 0.2


async def again(work: Callable[[], Awaitable[object]], pause: float = PAUSE) -> None:
    """Does not return."""
    BEGUN.set()
    while True:
        try:
            await work()
        except grpc.aio.AioRpcError as error:
            OUTCOMES[error.code().name.lower()] += 1
        except (OSError, EOFError, AssertionError, TimeoutError):  # a stream was refused, or cut off
            OUTCOMES["cut off"] += 1
        else:
            OUTCOMES["done"] += 1
        await asyncio.sleep(pause)
