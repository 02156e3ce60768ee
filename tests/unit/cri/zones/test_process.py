"""Exec and Attach of protect.v1 from the CRI server's side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from cri.zones.process import ProcessStreams
from daemonkit.faults import Broken
from xenpod_proto.protect.v1 import protect_pb2 as pb


class Ending:
    """A call whose end overtakes a write: grpc replaces the status by INTERNAL."""

    def __init__(self, *outputs: pb.ExecOutput) -> None:
        self._outputs = outputs

    async def __aiter__(self) -> AsyncIterator[pb.ExecOutput]:
        for output in self._outputs:
            yield output
        nothing = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(
            grpc.StatusCode.INTERNAL, nothing, nothing, "Internal error from Core", None
        )


async def test_a_write_at_the_end_does_not_hide_the_end() -> None:
    """As in ``yes | kubectl exec -i pod -- head -1``."""
    exited = pb.ExecOutput(exit=pb.ProcessExit(exit_code=3))
    process = ProcessStreams(Ending(pb.ExecOutput(stdout=b"y\n"), exited), pb.ExecInput, "exec in", "w1")  # type: ignore[arg-type]
    assert [output async for output in process.outputs()][-1] == exited


class Slow:
    """A call that takes a single message at a time, as grpc's calls do."""

    def __init__(self) -> None:
        self.taken: list[pb.ExecInput] = []
        self.writing = False
        self.begun, self.proceed = asyncio.Event(), asyncio.Event()

    async def write(self, message: pb.ExecInput) -> None:
        assert not self.writing, "a second write before the first was through"
        self.writing = True
        self.begun.set()
        await self.proceed.wait()
        self.writing = False
        self.taken.append(message)


async def test_inputs_take_turns() -> None:
    call = Slow()
    process = ProcessStreams(call, pb.ExecInput, "exec in", "w1")  # type: ignore[arg-type]
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(process.stdin(b"a"))
        await call.begun.wait()
        group.create_task(process.resize(24, 80))
        group.create_task(process.stdin_eof())
        for _ in range(5):
            await asyncio.sleep(0)
        call.proceed.set()
    assert call.taken == [
        pb.ExecInput(stdin=b"a"),
        pb.ExecInput(resize=pb.TerminalSize(rows=24, columns=80)),
        pb.ExecInput(stdin_eof=True),
    ]


async def test_an_end_without_an_exit_is_a_failure() -> None:
    process = ProcessStreams(Ending(pb.ExecOutput(stdout=b"y\n")), pb.ExecInput, "exec in", "w1")  # type: ignore[arg-type]
    with pytest.raises(Broken, match="Internal error"):
        async for _ in process.outputs():
            pass
