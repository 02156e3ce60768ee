"""Refreshes the remembered lists of the delegate, and notices its return.

While the delegate is away, only this task waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import grpc.aio

from cri.delegate.link import Delegate, TooLarge, error_text
from cri.delegate.lists import MergedList
from cri.delegate.stored import DelegateFacts
from daemonkit.backoff import Backoff
from daemonkit.faults import Fault
from daemonkit.logs import fields

log = logging.getLogger(__name__)

FRESH_SECONDS = 10.0
"""Seconds after which a list is requested again without a caller."""
_LONGEST_SECONDS = 2.0


class DelegateFollower:
    """A background task: requests stale lists, and a sign of life while the delegate is away.

    ``came``: called whenever the delegate answers again, after its lists are refreshed.
    """

    def __init__(
        self,
        delegate: Delegate,
        lists: tuple[MergedList, ...],
        stored: DelegateFacts,
        came: Callable[[], None],
    ) -> None:
        self._delegate = delegate
        self._lists = lists
        self._stored = stored
        self._came = came
        self._wake = asyncio.Event()
        self._backoff = Backoff(longest=_LONGEST_SECONDS)
        delegate.on_lost(self._wake.set)

    async def run(self) -> None:
        """Follow the delegate until cancelled."""
        while True:
            self._wake.clear()
            if await self.look():
                self._backoff.reset()
                await self._wait(FRESH_SECONDS)
            else:
                await asyncio.sleep(self._backoff.delay())

    async def look(self) -> bool:
        """Request the stale lists; returns whether the delegate answers."""
        before = self._delegate.trouble
        try:
            if before:
                await self._delegate.introduce(self._delegate.timeout)
            for one in self._lists:
                if before or one.last is None or time.monotonic() - one.last.heard_at >= FRESH_SECONDS:
                    await self._refresh(one)
        except (grpc.aio.AioRpcError, Fault) as error:
            if not before:
                log.warning("the delegate does not answer", extra=fields(cause=error_text(error)))
            self._delegate.lost(error_text(error))
            return False
        if before:
            self._stored.note()
            self._delegate.trouble = ""
            log.info("the delegate answers", extra=fields(endpoint=self._delegate.endpoint))
            self._came()
        return True

    async def _refresh(self, one: MergedList) -> None:
        try:
            await one.refresh()
        except TooLarge as error:
            one.failed(error)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
