"""One connection to an agent: the greeting, one task that reads, one that writes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from protect.channel.frames import DATA_TURN, Decoder, Frame, Side, credit, data, encode
from protect.channel.hello import agent_hello, host_hello
from protect.channel.streams import Credit, Piece
from protect.model.errors import LinkDown
from protect.model.process import AgentHello
from protect.toolstack.port import Transport

HELLO_DEADLINE = 10.0
READ_SIZE = 65_536
"""Bounds how long one zone's frames, be they the smallest, keep the loop from the others."""
WRITE_SIZE = 262_144
"""A write takes whole frames until it is about so long."""


class Source(Protocol):
    """A stream that goes out."""

    number: int

    def take(self, most: int) -> Piece | None: ...


class Wire:
    """Frames out: calls first, then credits, then one DATA frame of each ready stream in turn."""

    def __init__(self, transport: Transport, zone_id: str) -> None:
        self._transport = transport
        self._zone_id = zone_id
        self._calls: dict[int, bytes] = {}
        self._credits: dict[int, Credit] = {}
        self._ready: deque[Source] = deque()
        self._work = asyncio.Event()
        self._decoder = Decoder(Side.AGENT)
        self._early: list[Frame] = []

    def call(self, call_id: int, frame: bytes) -> None:
        """Send a CALL frame."""
        self._calls[call_id] = frame
        self._work.set()

    def take_back(self, call_id: int) -> bool:
        """Do not send this CALL; False when it has gone out."""
        return self._calls.pop(call_id, None) is not None

    def credit(self, stream: int, value: Credit) -> None:
        """Send a CREDIT; a newer one replaces one that has not gone out."""
        self._credits[stream] = value
        self._work.set()

    def ready(self, source: Source) -> None:
        """This stream may have something to send."""
        if source not in self._ready:
            self._ready.append(source)
            self._work.set()

    async def greet(self) -> AgentHello:
        """HELLO both ways, before anything else.

        LinkDown when the agent goes or keeps silent for 10 s, ProtocolViolation when it breaks a rule.
        """
        try:
            async with asyncio.timeout(HELLO_DEADLINE):
                await self._transport.write(host_hello(self._zone_id))
                frames: list[Frame] = []
                while not frames:
                    frames = self._decoder.feed(await self._read())
        except TimeoutError as error:
            cause = f"no HELLO within {HELLO_DEADLINE:.0f} s"
            raise LinkDown("greet", f"zone {self._zone_id}", cause) from error
        self._early = frames[1:]
        return agent_hello(frames[0])

    async def _read(self) -> bytes:
        untrusted_bytes = await self._transport.read(READ_SIZE)
        if not untrusted_bytes:
            raise LinkDown("read", f"zone {self._zone_id}", "the agent closed the channel")
        return untrusted_bytes

    async def read_loop(self, handle: Callable[[Frame], None]) -> None:
        """Hand on each frame, until the connection ends (LinkDown) or a rule is broken."""
        frames, self._early = self._early, []
        while True:
            for frame in frames:
                handle(frame)
            # A transport that always has bytes would never let go of the loop: other zones have turns too.
            await asyncio.sleep(0)
            frames = self._decoder.feed(await self._read())

    async def write_loop(self) -> None:
        """Send what is to be sent, until the connection ends (ConnectionError)."""
        while True:
            await self._work.wait()
            batch = self._batch()
            if batch:
                await self._transport.write(batch)
            else:
                self._work.clear()

    def _batch(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while self._calls and size < WRITE_SIZE:
            frame = self._calls.pop(next(iter(self._calls)))
            parts.append(frame)
            size += len(frame)
        for stream, value in self._credits.items():
            parts.append(encode(credit(stream, value.consumed, value.limit, value.fin)))
        self._credits.clear()
        for _ in range(len(self._ready)):
            source = self._ready.popleft()
            piece = source.take(DATA_TURN)
            if piece is not None:
                parts.append(encode(data(source.number, piece.offset, piece.content, piece.fin)))
                self._ready.append(source)
        return b"".join(parts)
