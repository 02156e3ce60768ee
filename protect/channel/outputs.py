"""Streams from the agent: each waits for its own sink only, and holds at most one window."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from daemonkit.loop.fair_scheduler import Share
from protect.channel.streams import Credit, Receiver
from protect.model.ports import Sink

log = logging.getLogger(__name__)

MOST_CHUNKS = 64
"""Most chunks held separately; more are joined, because an object takes fifty times a small chunk's bytes."""


class OutputStream:
    """One output stream of the current boot."""

    def __init__(
        self, number: int, *, fresh: bool, credit: Callable[[int, Credit], None], share: Share
    ) -> None:
        """``share``: the zone's turns for writes to the sink."""
        self.number = number
        self.claimable = False
        """Whether a call has just created the stream: it is kept until the caller registers or drops it."""
        self.receiver = Receiver(fresh=fresh)
        self.sink: Sink | None = None
        self.forgotten: Callable[[int], None] = lambda number: None
        self._credit = credit
        self._share = share
        self._held: list[bytes] = []
        self._pump: asyncio.Task[None] | None = None

    def attach(self, sink: Sink, consumed: int) -> None:
        """Deliver to this sink from now on; ``consumed`` counts only before the first delivery."""
        if not self.receiver.live and self.receiver.delivered < consumed:
            self.receiver = Receiver(consumed, fresh=False)
            self._held.clear()
        self.sink = sink
        self._go()

    def data(self, offset: int, content: bytes, fin: bool) -> None:
        """Take a DATA frame; ProtocolViolation if it breaks a rule."""
        new = self.receiver.data(offset, content, fin)
        if new:
            if len(self._held) >= MOST_CHUNKS:
                self._held = [b"".join(self._held)]
            self._held.append(new)
        self._grant()
        self._go()

    def close(self) -> None:
        """Deliver no more bytes."""
        self._held.clear()
        if self._pump is not None and self._pump is not asyncio.current_task():
            self._pump.cancel()

    async def closed(self) -> None:
        """Wait for the sink's last write to end (after ``close``)."""
        if self._pump is not None and self._pump is not asyncio.current_task():
            await asyncio.gather(self._pump, return_exceptions=True)

    def _grant(self) -> None:
        due = self.receiver.due()
        if due is not None:
            self._credit(self.number, due)

    def _go(self) -> None:
        if self.sink is None or self._pump is not None or not (self._held or self.receiver.ended):
            return
        pump = self._share.run(self._deliver)
        self._pump = asyncio.get_running_loop().create_task(pump, name=f"output {self.number}")

    async def _deliver(self) -> None:
        try:
            while self._held or self.receiver.ended:
                if await self._deliver_one():
                    return
        except BrokenPipeError:
            self.forgotten(self.number)
        except Exception:
            log.exception("giving up output stream %d: its sink failed", self.number)
            self.forgotten(self.number)
        finally:
            self._pump = None

    async def _deliver_one(self) -> bool:
        """Write the held bytes, or finish the sink; returns whether the stream ended."""
        assert self.sink is not None
        if not self._held:
            await self.sink.finish()
            self.receiver.consume(self.receiver.delivered)
            self.forgotten(self.number)
            return True
        content = b"".join(self._held)
        self._held.clear()
        self.receiver.consume(await self.sink.write(content))
        self._grant()
        return False
