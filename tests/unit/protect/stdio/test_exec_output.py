"""ExecOutput: the caller's pace is the stream's pace, a little behind."""

from __future__ import annotations

import asyncio

import pytest

from protect.stdio.exec_output import AHEAD_BYTES, TAKE_BYTES, ExecOutput


async def test_the_zone_is_read_a_little_ahead() -> None:
    output = ExecOutput()
    stdout, stderr = output.sink("stdout"), output.sink("stderr")
    piece = b"x" * (AHEAD_BYTES // 2)
    assert await stdout.write(piece) == len(piece)
    assert await stderr.write(piece) == len(piece)
    third = asyncio.create_task(stdout.write(b"one more"))
    await asyncio.sleep(0.01)
    assert not third.done()
    assert await anext(output) == ("stdout", piece)
    assert await third == len(piece) + 8
    assert await anext(output) == ("stderr", piece)
    assert await anext(output) == ("stdout", b"one more")
    await stdout.finish()
    await stderr.finish()
    with pytest.raises(StopAsyncIteration):
        await anext(output)


async def test_pieces_of_a_stream_are_given_together() -> None:
    output = ExecOutput()
    stdout, stderr = output.sink("stdout"), output.sink("stderr")
    for sink, data in ((stdout, b"a"), (stdout, b"b"), (stderr, b"c"), (stdout, b"d")):
        await sink.write(data)
    assert [await anext(output) for _ in range(3)] == [("stdout", b"ab"), ("stderr", b"c"), ("stdout", b"d")]
    half = b"x" * (TAKE_BYTES // 2 + 1)
    await stdout.write(half)
    await stdout.write(half)
    assert [len((await anext(output))[1]) for _ in range(2)] == [len(half)] * 2


async def test_a_piece_beyond_the_limit_goes_alone() -> None:
    output = ExecOutput(["stdout"])
    await output.sink("stdout").write(b"x" * (2 * AHEAD_BYTES))
    assert len((await anext(output))[1]) == 2 * AHEAD_BYTES


async def test_an_end_wakes_the_caller() -> None:
    output = ExecOutput(["stdout"])
    waiting = asyncio.create_task(anext(output, None))
    await asyncio.sleep(0)
    await output.sink("stdout").finish()
    assert await waiting is None


async def test_abort_ends_both_sides() -> None:
    output = ExecOutput(["stdout"])
    sink = output.sink("stdout")
    await sink.write(b"x" * AHEAD_BYTES)
    writing = asyncio.create_task(sink.write(b"one"))
    await asyncio.sleep(0)
    output.abort(RuntimeError("gone"))
    with pytest.raises(BrokenPipeError):
        await writing
    with pytest.raises(RuntimeError, match="gone"):
        await anext(output)
    with pytest.raises(BrokenPipeError):
        await sink.write(b"two")
