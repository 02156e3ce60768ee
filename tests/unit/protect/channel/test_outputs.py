"""protectd's memory for a zone and a caller that does not read: bytes, not objects."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import tracemalloc
from collections.abc import AsyncIterator, Iterator

import pytest

from daemonkit.loop.fair_scheduler import FairScheduler
from protect.channel.calls import MOST_OPEN, CallTable
from protect.channel.frames import WINDOW
from protect.channel.outputs import OutputStream
from protect.stdio import fanout
from protect.stdio.exec_output import AHEAD_BYTES, ExecOutput


class Held:
    """Bytes allocated after the block and not before."""

    size = 0


@contextlib.contextmanager
def measured() -> Iterator[Held]:
    held = Held()
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    try:
        yield held
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        held.size = after - before
    finally:
        tracemalloc.stop()


def chunks(total: int) -> Iterator[bytes]:
    """Chunks of two bytes, each a separate object."""
    for number in range(total // 2):
        yield (number % 60_000).to_bytes(2, "big")


class Stuck:
    """A sink that takes nothing."""

    async def write(self, data: bytes) -> int:
        await asyncio.Event().wait()
        return 0

    async def finish(self) -> None:
        """Never comes."""


async def test_a_stream_with_a_waiting_sink_holds_bounded_memory() -> None:
    stream = OutputStream(1, fresh=True, credit=lambda number, credit: None, share=FairScheduler().share())
    stream.attach(Stuck(), 0)
    with measured() as held:
        at = 0
        for chunk in chunks(WINDOW):
            stream.data(at, chunk, fin=False)
            at += len(chunk)
            if at == 2:
                await asyncio.sleep(0)
    assert held.size < 4 * WINDOW
    stream.close()
    await stream.closed()


@pytest.mark.parametrize("streams", [("stdout",), ("stdout", "stderr")])
async def test_a_lagging_reader_of_a_log_holds_bounded_memory(
    streams: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "QUEUE_BYTES", WINDOW)
    fan = fanout.FanOut()
    reader = fan.subscribe()
    with measured() as held:
        for number, chunk in enumerate(chunks(WINDOW)):
            fan.publish(streams[number % len(streams)], chunk)
    assert held.size < 3 * WINDOW
    reader.close()


async def test_small_chunks_of_a_stream_do_not_cut_a_reader_off() -> None:
    fan = fanout.FanOut()
    reader = fan.subscribe()
    sent = b"".join(chunks(AHEAD_BYTES))
    for chunk in chunks(AHEAD_BYTES):
        fan.publish("stdout", chunk)
    fan.end()
    assert b"".join([data async for _, data in reader]) == sent


async def test_an_unread_exec_holds_bounded_memory() -> None:
    output = ExecOutput()
    sinks = (output.sink("stdout"), output.sink("stderr"))

    async def write() -> None:
        for number, chunk in enumerate(chunks(AHEAD_BYTES)):
            await sinks[number % 2].write(chunk)

    with measured() as held:
        writing = asyncio.create_task(write())
        await asyncio.wait([writing], timeout=0.5)
    assert held.size < 3 * AHEAD_BYTES
    output.abort(RuntimeError("enough"))
    with pytest.raises(BrokenPipeError):
        await writing


@pytest.fixture
async def full() -> AsyncIterator[CallTable]:
    """No more calls may be open, and the zone answers none."""
    table = CallTable()
    for _ in range(MOST_OPEN):
        await table.open("get_facts", early=False)
    yield table


async def test_gone_callers_hold_no_memory(full: CallTable) -> None:
    async def give_up() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                await full.open("get_facts", early=False)

    await give_up()
    with measured() as held:
        for _ in range(500):
            await give_up()
    assert held.size < 5_000
