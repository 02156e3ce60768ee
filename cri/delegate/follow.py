"""Keeps the delegate's last word fresh, and finds out when it is back: until then nobody waits for it."""

from __future__ import annotations

import asyncio
import logging
import time

import grpc.aio

from cri.delegate.link import Delegate, said
from cri.delegate.lists import MergedList
from cri.delegate.met import Met
from daemonkit.backoff import Backoff
from daemonkit.faults import Fault
from daemonkit.logs import fields

log = logging.getLogger(__name__)

FRESH = 10.0
"""Seconds after which its lists are asked for, if nobody else has."""
_LONGEST = 2.0


class DelegateFollower:
    """A background task."""

    def __init__(self, delegate: Delegate, lists: tuple[MergedList, ...], met: Met) -> None:
        self._delegate = delegate
        self._lists = lists
        self._met = met
        self._wake = asyncio.Event()
        self._backoff = Backoff(longest=_LONGEST)
        delegate.on_lost(self._wake.set)

    async def run(self) -> None:
        """For ever."""
        while True:
            self._wake.clear()
            if await self.look():
                self._backoff.reset()
                await self._wait(FRESH)
            else:
                await asyncio.sleep(self._backoff.delay())

    async def look(self) -> bool:
        """Ask for what is not fresh; whether the delegate answers."""
        before = self._delegate.trouble
        try:
            if before:
                await self._delegate.introduce(self._delegate.timeout)
            for one in self._lists:
                if before or one.last is None or time.monotonic() - one.last.heard_at >= FRESH:
                    await one.refresh()
        except (grpc.aio.AioRpcError, Fault) as error:
            if not before:
                log.warning("the delegate does not answer", extra=fields(cause=said(error)))
            self._delegate.lost(said(error))
            return False
        if before:
            self._met.note()
            self._delegate.trouble = ""
            log.info("the delegate answers", extra=fields(endpoint=self._delegate.endpoint))
        return True

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
