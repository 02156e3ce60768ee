"""Keeps labels up to date: reads the node's capabilities periodically, and writes changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Protocol

from cluster.labeller.labels import Labels
from daemonkit import lifecycle
from daemonkit.backoff import Backoff
from daemonkit.faults import Fault
from daemonkit.logs import fields

log = logging.getLogger(__name__)

LONGEST_DELAY_SECONDS = 300.0


class LabelSink(Protocol):
    """The place where labels are written."""

    async def put(self, labels: Labels) -> bool:
        """Write these labels, and remove the rest of our labels; returns whether any label changed."""

    async def remove(self) -> bool:
        """Remove our labels; returns whether any existed."""


async def keep_labels(
    read: Callable[[], Awaitable[Labels]], sink: LabelSink, interval: float, stop: asyncio.Event
) -> None:
    """Keep the labels up to date until ``stop``.  They stay afterwards, and while xenpod-cri is away.

    ``interval``: seconds between two readings, with a tenth of jitter: nodes do not ask all at once.  After a
    failure the backoff is a second, then two, four, up to ``LONGEST_DELAY_SECONDS``.
    """
    backoff = Backoff(1.0, LONGEST_DELAY_SECONDS)
    backoff.delay()  # the first delay is 0, but even the first failure must be followed by a pause
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
            told = told or lifecycle.notify_ready("the labels are there")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await stop.wait()


async def once(read: Callable[[], Awaitable[Labels]], sink: LabelSink) -> None:
    """Read and write the labels once.  Fault: reading or writing failed."""
    labels = await read()
    if await sink.put(labels):
        log.info("labels changed", extra=fields(**dict(sorted(labels.items()))))


async def remove_labels(sink: LabelSink) -> None:
    """Remove the labels.  Fault: the removal failed."""
    if await sink.remove():
        log.info("labels removed")
