"""Several writers of an input: their writes do not mix."""

from __future__ import annotations

import asyncio

from protect.channel.frames import WINDOW
from protect.channel.inputs import InputStream
from protect.channel.streams import Credit


class Reader:
    """The other end: takes bytes within its given credit."""

    def __init__(self) -> None:
        self.stream = InputStream(1, fresh=True, ready=lambda _: None)
        self.read = bytearray()
        self.ended = False

    def take(self) -> None:
        """Everything within the credit."""
        while piece := self.stream.take(1 << 20):
            self.read += piece.content
            self.ended |= piece.fin

    def allow(self) -> None:
        """Another window."""
        self.stream.credit(Credit(len(self.read), len(self.read) + WINDOW))


async def test_a_waiting_write_keeps_its_turn() -> None:
    """A second write comes just when the first could go on."""
    reader = Reader()
    reader.allow()
    first = asyncio.create_task(reader.stream.write(b"a" * (2 * WINDOW)))
    await asyncio.sleep(0)
    second = asyncio.create_task(reader.stream.write(b"b" * 10))
    reader.take()
    reader.allow()
    while not (first.done() and second.done()):
        await asyncio.sleep(0)
        reader.take()
        reader.allow()
    reader.take()
    assert reader.read == b"a" * (2 * WINDOW) + b"b" * 10


async def test_an_end_waits_for_earlier_writes() -> None:
    reader = Reader()
    reader.allow()
    writing = asyncio.create_task(reader.stream.write(b"a" * (2 * WINDOW)))
    await asyncio.sleep(0)
    ending = asyncio.create_task(reader.stream.finish())
    while not reader.ended:
        await asyncio.sleep(0)
        reader.take()
        reader.allow()
    await asyncio.gather(writing, ending)
    assert reader.read == b"a" * (2 * WINDOW)
