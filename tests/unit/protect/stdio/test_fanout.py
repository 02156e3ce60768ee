"""Output for callers that do not read: in the memory of their own tenant, beside a chunk for each."""

from __future__ import annotations

import asyncio

import pytest

from daemonkit.faults import Exhausted
from daemonkit.shares import Holding, Shares
from protect.stdio.exec_output import ExecOutput
from protect.stdio.fanout import FanOut

CHUNK = b"x" * 10_000


async def _write(output: ExecOutput, times: int) -> None:
    sink = output.sink("stdout")
    for _ in range(times):
        await sink.write(CHUNK)
    await sink.finish()


async def test_execs_beyond_their_tenants_share_wait_for_their_readers_and_lose_nothing() -> None:
    shares = Shares(8 * len(CHUNK))
    outputs = [ExecOutput(["stdout"], Holding(shares, "evil")) for _ in range(3)]
    writing = [asyncio.create_task(_write(output, 20)) for output in outputs]
    for _ in range(100):
        await asyncio.sleep(0)
    assert shares.held("evil") <= shares.free and not any(task.done() for task in writing)
    honest = ExecOutput(["stdout"], Holding(shares, "honest"))
    await _write(honest, 3)
    assert shares.held("honest") == 2 * len(CHUNK)
    for output in (*outputs, honest):
        assert {data for _, data in [chunk async for chunk in output]} <= {CHUNK * n for n in range(1, 14)}
    await asyncio.gather(*writing)
    assert shares.free == 8 * len(CHUNK)


async def test_an_abandoned_exec_holds_nothing() -> None:
    shares = Shares(1 << 20)
    output = ExecOutput(["stdout"], Holding(shares, "a"))
    writing = asyncio.create_task(_write(output, 100))
    for _ in range(100):
        await asyncio.sleep(0)
    assert shares.held("a")
    output.abort(RuntimeError("gone"))
    with pytest.raises(BrokenPipeError):
        await writing
    assert shares.free == 1 << 20


async def test_readers_beyond_their_tenants_share_are_cut_off_and_others_are_not() -> None:
    shares = Shares(8 * len(CHUNK))
    fan, other = FanOut(), FanOut()
    slow = [fan.subscribe(Holding(shares, "evil")) for _ in range(3)]
    honest = other.subscribe(Holding(shares, "honest"))
    for _ in range(6):
        fan.publish("stdout", CHUNK)
    for _ in range(3):
        other.publish("stdout", CHUNK)
    other.end()
    assert [data async for _, data in honest] == [CHUNK] * 3
    for reader in slow:
        with pytest.raises(Exhausted, match="readers of its namespace hold as much memory as they may"):
            async for _ in reader:
                pass
        reader.close()
    assert shares.free == 8 * len(CHUNK)
