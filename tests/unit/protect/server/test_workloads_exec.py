"""Callers' views of Exec and Attach: input, sizes of terminals, output, ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from protect.channel.frames import Frame, Type
from tests.support.agent.agent_sim import SimAgent
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.served import TIMEOUT, Served, served
from tests.support.protect.zones import failing
from tests.support.waiting import until
from xenpod_proto.channel.v1 import channel_pb2
from xenpod_proto.protect.v1 import protect_pb2 as pb

REFUSED = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture
async def node(short_path: Path, toolstack: MemoryToolstack) -> AsyncIterator[Served]:
    """A node with a zone, and a workload with a terminal and an input."""
    async with served(short_path, toolstack) as node:
        await node.create_zone()
        await node.create(tty=True, stdin=True)
        await node.start()
        yield node
        assert [fault for domain in toolstack.domains.values() for fault in domain.agent.faults] == []


class Execed:
    """A caller of Exec, or of Attach."""

    def __init__(self, node: Served, *, attach: bool = False, **start: Any) -> None:
        self.inputs: asyncio.Queue[pb.ExecInput | pb.AttachInput | None] = asyncio.Queue()
        self.agent = node.agent()
        self.call: grpc.aio.StreamStreamCall[Any, pb.ExecOutput]
        if attach:
            self._put(pb.AttachInput(start=pb.AttachStart(workload_id="w1")))
            self.call = node.clients.workloads.Attach(self._sent(), timeout=TIMEOUT)  # type: ignore[arg-type]
        else:
            begin = pb.ExecStart(workload_id="w1", process=b"{}", **start)
            self._put(pb.ExecInput(start=begin))
            self.call = node.clients.workloads.Exec(self._sent(), timeout=TIMEOUT)  # type: ignore[arg-type]
        self._kind = pb.AttachInput if attach else pb.ExecInput

    async def _sent(self) -> AsyncIterator[pb.ExecInput | pb.AttachInput]:
        while message := await self.inputs.get():
            yield message

    def _put(self, message: pb.ExecInput | pb.AttachInput) -> None:
        self.inputs.put_nowait(message)

    def send(self, **message: Any) -> None:
        self._put(self._kind(**message))

    def resize(self, rows: int, columns: int) -> None:
        self.send(resize=pb.TerminalSize(rows=rows, columns=columns))

    async def made(self) -> channel_pb2.Process:
        """The process, as soon as the agent has it."""
        await until(lambda: len(self.agent.processes) == 2)
        return list(self.agent.processes.values())[-1]

    async def outputs(self) -> list[pb.ExecOutput]:
        return [output async for output in self.call]


def end(agent: SimAgent, process: channel_pb2.Process, code: int, *, output: bool = True) -> None:
    """The process ends; its output ends too, unless another process has inherited the output."""
    exited = channel_pb2.ProcessExited(process=process.process, exit_code=code, exited_at_ns=time.time_ns())
    for number in (process.created.stdout_stream, process.created.stderr_stream):
        if number and output:
            agent.end(number)
    agent.send(Frame(Type.EVENT, 0, channel_pb2.Event(process_exited=exited).SerializeToString()))


def sizes(agent: SimAgent) -> list[tuple[str, int, int]]:
    """The terminal sizes told to the agent."""
    asked = [one.resize_terminal for one in agent.requests if one.HasField("resize_terminal")]
    return [("exec" if one.process.exec_id else "main", one.rows, one.columns) for one in asked]


async def test_output_comes_before_the_exit_code(node: Served) -> None:
    execed = Execed(node)
    process = await execed.made()
    execed.agent.write(process.created.stdout_stream, b"out")
    execed.agent.write(process.created.stderr_stream, b"err")
    end(execed.agent, process, 7)
    outputs = await execed.outputs()
    assert b"".join(one.stdout for one in outputs) == b"out"
    assert b"".join(one.stderr for one in outputs) == b"err"
    assert [one.exit.exit_code for one in outputs if one.HasField("exit")] == [7]
    assert outputs[-1].HasField("exit")
    await until(lambda: len(execed.agent.processes) == 1)  # deleted


async def test_output_held_by_another_process_does_not_delay_the_end(node: Served) -> None:
    execed = Execed(node)
    process = await execed.made()
    execed.agent.write(process.created.stdout_stream, b"out")
    end(execed.agent, process, 3, output=False)
    outputs = await execed.outputs()
    assert b"".join(one.stdout for one in outputs) == b"out"
    assert outputs[-1].exit.exit_code == 3


async def test_input_of_any_size_comes_whole(node: Served) -> None:
    execed = Execed(node, stdin=True)
    process = await execed.made()
    content = bytes(range(256)) * 1000
    execed.send(stdin=content)
    execed.send(stdin=b"end")
    execed.send(stdin_eof=True)
    source = execed.agent.inputs[process.created.stdin_stream]
    await until(lambda: source.eof)
    assert source.read == content + b"end"
    end(execed.agent, process, 0)
    assert (await execed.outputs())[-1].exit.exit_code == 0


async def test_input_for_an_exec_without_stdin_is_refused(node: Served) -> None:
    execed = Execed(node)
    await execed.made()
    execed.send(stdin=b"x")
    async with failing(REFUSED) as said:
        await execed.outputs()
    assert "it has no stdin" in said[0]
    await until(lambda: len(execed.agent.processes) == 1)


async def test_a_terminal_has_the_requested_size(node: Served) -> None:
    execed = Execed(node, tty=True, stdin=True)
    process = await execed.made()
    execed.resize(1, 65_535)
    execed.resize(65_535, 1)
    execed.send(stdin_eof=True)
    await until(lambda: execed.agent.inputs[process.created.stdin_stream].eof)
    execed.resize(24, 80)  # after the end of its input, too
    await until(lambda: len(sizes(execed.agent)) == 3)
    assert sizes(execed.agent) == [("exec", 1, 65_535), ("exec", 65_535, 1), ("exec", 24, 80)]
    end(execed.agent, process, 0)
    await execed.outputs()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(0, 80), (24, 0), (65_536, 80), (24, 65_536)])
async def test_an_impossible_size_is_refused(node: Served, rows: int, columns: int, late: bool) -> None:
    execed = Execed(node, tty=True, stdin=True)
    await execed.made()
    if late:
        execed.send(stdin_eof=True)
    execed.resize(rows, columns)
    async with failing(REFUSED) as said:
        await execed.outputs()
    assert f"{rows} by {columns} is not a size" in said[0]
    assert sizes(execed.agent) == []


async def test_an_attached_caller_writes_and_resizes(node: Served) -> None:
    agent = node.agent()
    main = agent.processes["w1", ""]
    attached = Execed(node, attach=True)
    attached.resize(24, 80)
    attached.send(stdin=b"typed")
    await until(lambda: agent.inputs[main.created.stdin_stream].read == b"typed")
    assert sizes(agent) == [("main", 24, 80)]
    agent.write(main.created.stdout_stream, b"shown")
    end(agent, main, 0)
    outputs = await attached.outputs()
    assert b"".join(one.stdout for one in outputs) == b"shown"


async def test_an_attached_caller_may_leave_the_input_open(node: Served) -> None:
    """Without stdin_once another caller can write to the input."""
    agent = node.agent()
    source = agent.inputs[agent.processes["w1", ""].created.stdin_stream]
    for typed in (b"one", b"two"):
        attached = Execed(node, attach=True)
        attached.send(stdin=typed)
        attached.send(stdin_eof=True)
        await until(lambda typed=typed: source.read.endswith(typed))
        attached.call.cancel()
    assert source.read == b"onetwo" and not source.eof


async def test_a_second_start_is_refused(node: Served) -> None:
    execed = Execed(node, stdin=True)
    await execed.made()
    execed.send(start=pb.ExecStart(workload_id="w1", process=b"{}"))
    async with failing(REFUSED) as said:
        await execed.outputs()
    assert "a message after the first" in said[0]


async def test_a_too_long_exec_is_killed(node: Served) -> None:
    execed = Execed(node, timeout_ns=1_000_000)
    async with failing(grpc.StatusCode.DEADLINE_EXCEEDED):
        await execed.outputs()
    await until(lambda: len(execed.agent.processes) == 1)


async def test_an_exec_ends_with_its_zone(node: Served, toolstack: MemoryToolstack) -> None:
    execed = Execed(node)
    await execed.made()
    toolstack.kill("z1")
    async with failing(grpc.StatusCode.FAILED_PRECONDITION):
        await execed.outputs()
