"""Streams to the agent (stdin), with back-pressure for their writers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from daemonkit.faults import Refused
from protect.channel.streams import Credit, DataChunk, Sender


class InputStream:
    """An input stream.  Up to 65,536 unconsumed bytes are kept, and survive a broken connection."""

    def __init__(self, number: int, *, fresh: bool, ready: Callable[[InputStream], None]) -> None:
        self.number = number
        self.sender = Sender(fresh=fresh)
        self._ready = ready
        self._space = asyncio.Event()
        self._failure: Exception | None = None
        self._turn = asyncio.Lock()

    async def write(self, data: bytes) -> None:
        """Queue all data, and wait while the process does not read.

        Refused: the process closed its end; LinkDown: the link is closed or cut off.  Concurrent writers take
        turns; the bytes of one write stay together.
        """
        async with self._turn:
            at = 0
            while at < len(data):
                self._check()
                space = self.sender.space
                if space == 0:
                    self._space.clear()
                    await self._space.wait()
                    continue
                self.sender.add(data[at : at + space])
                at += space
                self._ready(self)

    async def finish(self) -> None:
        """End the stream: the process reads end of file after the last byte.  May be repeated."""
        async with self._turn:
            self.sender.close()
            self._space.set()
            self._ready(self)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self.sender.closed:
            raise Refused("write", "standard input", "it is closed")

    def take(self, most: int) -> DataChunk | None:
        """The next chunk to send; None if no chunk can be sent now."""
        return self.sender.take(most)

    def credit(self, credit: Credit) -> None:
        """Take the agent's CREDIT; ProtocolViolation if it breaks a rule."""
        self.sender.credit(credit)
        self._space.set()
        self._ready(self)

    def drop(self) -> None:
        """Send nothing more; writers are refused."""
        self.sender.credit(Credit(0, 0, fin=True))
        self._space.set()

    def fail(self, failure: Exception) -> None:
        """Fail all writers: no further connection will come."""
        self._failure = failure
        self._space.set()
