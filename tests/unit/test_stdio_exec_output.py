"""ExecOutput: the caller's pace is the stream's pace."""

from __future__ import annotations

import asyncio

import pytest

from protect.stdio.exec_output import ExecOutput


async def test_consumed_moves_as_the_caller_takes() -> None:
    output = ExecOutput()
    stdout, stderr = output.sink("stdout"), output.sink("stderr")
    first = asyncio.create_task(stdout.write(b"one"))
    await asyncio.sleep(0)
    second = asyncio.create_task(stderr.write(b"two"))
    await asyncio.sleep(0.01)
    assert not first.done() and not second.done()
    assert await anext(output) == ("stdout", b"one")
    assert await first == 3
    assert not second.done()
    assert await anext(output) == ("stderr", b"two")
    assert await second == 3
    await stdout.finish()
    await stderr.finish()
    with pytest.raises(StopAsyncIteration):
        await anext(output)


async def test_an_end_wakes_the_caller() -> None:
    output = ExecOutput(["stdout"])
    waiting = asyncio.create_task(anext(output, None))
    await asyncio.sleep(0)
    await output.sink("stdout").finish()
    assert await waiting is None


async def test_abort_ends_both_sides() -> None:
    output = ExecOutput(["stdout"])
    sink = output.sink("stdout")
    writing = asyncio.create_task(sink.write(b"one"))
    await asyncio.sleep(0)
    output.abort(RuntimeError("gone"))
    with pytest.raises(BrokenPipeError):
        await writing
    with pytest.raises(RuntimeError, match="gone"):
        await anext(output)
    with pytest.raises(BrokenPipeError):
        await sink.write(b"two")
