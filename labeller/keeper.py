"""Labels kept true: read again and again, put where they belong when they differ."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Protocol

from daemonkit import lifecycle
from daemonkit.backoff import Backoff
from daemonkit.faults import Fault
from daemonkit.logs import fields
from labeller.labels import Labels

log = logging.getLogger(__name__)

LONGEST_DELAY = 300.0


class LabelSink(Protocol):
    """Where labels go."""

    async def put(self, labels: Labels) -> bool:
        """Have these labels there, and no others that are ours; whether any changed."""

    async def remove(self) -> bool:
        """Have none there; whether there were any."""


async def keep(
    read: Callable[[], Awaitable[Labels]], sink: LabelSink, interval: float, stop: asyncio.Event
) -> None:
    """Until ``stop``.  The labels stay when this ends, and while nobody can say what the node can.

    ``interval``: seconds between two readings, give or take a tenth, so that nodes do not ask all at once.
    After a failure the next try comes after a second, then two, four ... up to ``LONGEST_DELAY``.
    """
    backoff = Backoff(1.0, LONGEST_DELAY)
    backoff.delay()  # the first one is none: a failure is to be followed by a pause
    said, told = "", False
    while not stop.is_set():
        try:
            await once(read, sink)
        except Fault as fault:
            if str(fault) != said:
                log.warning("%s", fault)
            said, pause = str(fault), backoff.delay()
        else:
            if said:
                log.info("the labels are known and kept again")
            said, pause = "", interval * random.uniform(0.9, 1.1)
            backoff.reset()
            backoff.delay()
            told = told or lifecycle.ready("the labels are there")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await stop.wait()


async def once(read: Callable[[], Awaitable[Labels]], sink: LabelSink) -> None:
    """Read and put once.  Fault: it could not be done."""
    labels = await read()
    if await sink.put(labels):
        log.info("labels changed", extra=fields(**dict(sorted(labels.items()))))


async def remove(sink: LabelSink) -> None:
    """Take the labels away.  Fault: it could not be done."""
    if await sink.remove():
        log.info("labels removed")
