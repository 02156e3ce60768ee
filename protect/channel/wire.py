"""The frames of one connection: the HELLO, a reader task, and a writer task."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from daemonkit.loop.fair_scheduler import Share
from protect.channel import counts
from protect.channel.frames import DATA_TURN, Frame, FrameDecoder, Side, credit, data, encode
from protect.channel.messages import agent_hello, host_hello
from protect.channel.reply_rules import longest
from protect.channel.streams import Credit, DataChunk
from protect.model.errors import LinkDown
from protect.model.process import AgentHello
from protect.model.transport import Transport

HELLO_SECONDS = 10.0
READ_BYTES = 65_536
WRITE_BYTES = 262_144
"""Approximate limit of a write, in bytes; a write consists of whole frames."""


class OutgoingStream(Protocol):
    """A stream that sometimes has bytes to send."""

    number: int

    def take(self, most: int) -> DataChunk | None: ...


class ChannelWire:
    """Sends frames: calls first, then credits, then a DATA frame of each ready stream in turn."""

    def __init__(self, transport: Transport, zone_id: str, share: Share) -> None:
        """``share``: the zone's turns for ``greet`` and the loops."""
        self._share = share
        self._transport = transport
        self._zone_id = zone_id
        self._calls: dict[int, bytes] = {}
        self._credits: dict[int, Credit] = {}
        self._ready: deque[OutgoingStream] = deque()
        self._work = asyncio.Event()
        self._decoder = FrameDecoder(Side.AGENT, self._longest_reply)
        self._operations: Callable[[int], str] = lambda call_id: ""

    def call(self, call_id: int, frame: bytes) -> None:
        """Send a CALL frame."""
        self._calls[call_id] = frame
        self._work.set()

    def withdraw(self, call_id: int) -> bool:
        """Withdraw a CALL; False: already sent."""
        return self._calls.pop(call_id, None) is not None

    def credit(self, stream: int, value: Credit) -> None:
        """Send a CREDIT; a newer CREDIT replaces an unsent one."""
        self._credits[stream] = value
        self._work.set()

    def ready(self, source: OutgoingStream) -> None:
        """Note that this stream may have bytes to send."""
        if source not in self._ready:
            self._ready.append(source)
            self._work.set()

    async def greet(self) -> AgentHello:
        """Exchange HELLO, before any other frame.

        LinkDown: the agent leaves, or is silent for 10 s; ProtocolViolation: the agent breaks a rule.
        """
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                await self._transport.write(host_hello(self._zone_id))
                while (first := self._decoder.take()) is None:
                    await self._read()
        except TimeoutError as error:
            cause = f"no HELLO within {HELLO_SECONDS:.0f} s"
            raise LinkDown("greet", f"zone {self._zone_id}", cause) from error
        return agent_hello(first)

    async def _read(self) -> None:
        if self._share.enough():
            # A transport that always has bytes would block the loop: give other zones their turns.
            await asyncio.sleep(0)
        untrusted_bytes = await self._transport.read(READ_BYTES)
        if not untrusted_bytes:
            raise LinkDown("read", f"zone {self._zone_id}", "the agent closed the channel")
        counts.RECEIVED.inc(len(untrusted_bytes))
        self._decoder.add(untrusted_bytes)

    def _longest_reply(self, call_id: int) -> int:
        return longest(self._operations(call_id))

    async def read_loop(self, handle: Callable[[Frame], None], operations: Callable[[int], str]) -> None:
        """Pass on each frame, until the connection ends (LinkDown) or a frame breaks a rule.

        ``operations``: returns the operation of a call by id, "" for an unknown id.
        """
        self._operations = operations
        while True:
            while (frame := self._decoder.take()) is not None:
                handle(frame)
                if self._share.enough():
                    # One read may hold many small frames.
                    await asyncio.sleep(0)
            await self._read()

    async def write_loop(self) -> None:
        """Send all queued frames, until the connection ends (ConnectionError)."""
        while True:
            await self._work.wait()
            batch = self._batch()
            if batch:
                counts.SENT.inc(len(batch))
                await self._transport.write(batch)
            else:
                self._work.clear()

    def _batch(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while self._calls and size < WRITE_BYTES:
            frame = self._calls.pop(next(iter(self._calls)))
            parts.append(frame)
            size += len(frame)
        for stream, value in self._credits.items():
            parts.append(encode(credit(stream, value.consumed, value.limit, value.fin)))
        self._credits.clear()
        for _ in range(len(self._ready)):
            source = self._ready.popleft()
            chunk = source.take(DATA_TURN)
            if chunk is not None:
                parts.append(encode(data(source.number, chunk.offset, chunk.content, chunk.fin)))
                self._ready.append(source)
        return b"".join(parts)
