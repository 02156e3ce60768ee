"""Workload logic: create, start, exit, delete, exec, attach, restart, over agents in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from daemonkit.faults import (
    Broken,
    Exhausted,
    Exists,
    Fault,
    Invalid,
    Missing,
    Refused,
    TooLate,
    Unreachable,
)
from protect.assembly import Assembly
from protect.config import ZoneLimits
from protect.model.container import ExecSpec, ImageFilesystem
from protect.model.errors import ToolstackError
from protect.model.process import ProcessExited, ProcessName
from protect.model.workload import Reason, WorkloadState
from protect.workloads import attach, control, create, delete, disks, start
from protect.workloads.exec import Output
from protect.workloads.file_copies import TakenFiles
from protect.workloads.terminal import Command, Resize, Stdin, StdinEnd
from tests.support.agent.agent_sim import SimAgent
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.protect_node import hasten, running, served, workload_spec, zone_spec
from tests.support.waiting import until
from xenpod_proto.channel.v1 import channel_pb2 as pb


def end(agent: SimAgent, workload_id: str, code: int = 0, output: bytes = b"") -> None:
    """The process writes its last output, closes its streams, and exits."""
    created = agent.processes[workload_id, ""].created
    agent.write(created.stdout_stream, output)
    agent.end(created.stdout_stream)
    if created.stderr_stream:
        agent.end(created.stderr_stream)
    agent.exit(workload_id, code)


def lines(path: Path) -> list[str]:
    """Stream and text of each line of a log."""
    return [line.split(" ", 1)[1] for line in path.read_text().splitlines()]


def asked(agent: SimAgent) -> list[str | None]:
    return [request.WhichOneof("op") for request in agent.requests]


async def commands(*items: Command) -> AsyncIterator[Command]:
    for item in items:
        yield item


async def endless(*items: Command) -> AsyncIterator[Command]:
    for item in items:
        yield item
    await asyncio.Event().wait()


def no_trace(protectd: Assembly, toolstack: MemoryToolstack, agent: SimAgent) -> bool:
    saved = protectd.registry.store.load()
    return not (
        protectd.registry.workloads
        or saved.workloads
        or saved.workload_intents
        or toolstack.of_zone("z1").disks
        or agent.processes
        or any(protectd.dirs.of("z1").glob("*"))
    )


async def test_a_workload_passes_all_states_of_its_life(
    protectd: Assembly, toolstack: MemoryToolstack, agent: SimAgent, tmp_path: Path
) -> None:
    created = await protectd.creation.create(workload_spec(tmp_path))
    assert (created.state, [disk.vdev for disk in created.disks]) == (WorkloadState.CREATED, ["xvda"])
    assert toolstack.of_zone("z1").disks["xvda"].readonly
    running_one = await start.start(protectd.registry, protectd.ports.volumes, "w1")
    assert running_one.state is WorkloadState.RUNNING and running_one.started_at_ns
    end(agent, "w1", 3, b"hello\nworld")
    ended = await control.wait(protectd.registry, protectd.lifetime.stopping, "w1")
    assert (ended.exit_code, ended.reason) == (3, Reason.ERROR)
    assert ended.finished_at_ns >= ended.started_at_ns
    assert lines(tmp_path / "w1.log") == ["stdout F hello", "stdout P world"]
    assert protectd.registry.store.load().workloads == (ended,)
    await protectd.workload_removal.delete("w1")
    await protectd.workload_removal.delete("w1")
    assert no_trace(protectd, toolstack, agent)


async def test_invalid_creates_are_refused(protectd: Assembly, tmp_path: Path) -> None:
    await protectd.creation.create(workload_spec(tmp_path))
    with pytest.raises(Exists):
        await protectd.creation.create(workload_spec(tmp_path))
    with pytest.raises(Missing):
        await protectd.creation.create(workload_spec(tmp_path, "w2", "nowhere"))
    missing = replace(workload_spec(tmp_path, "w2"), stack=(ImageFilesystem(tmp_path / "none", "squashfs"),))
    with pytest.raises(Invalid, match="no image file"):
        await protectd.creation.create(missing)
    with pytest.raises(Refused, match="open log"):
        await protectd.creation.create(workload_spec(tmp_path, "w2", log_path="/nonexistent/dir/log"))
    assert list(protectd.registry.workloads) == ["w1"]


async def test_the_number_of_workloads_is_limited(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack, ZoneLimits(workloads_per_zone=1)) as protectd:
        await protectd.launcher.launch(zone_spec())
        await protectd.creation.create(workload_spec(tmp_path))
        with pytest.raises(Exhausted, match="as many as it may"):
            await protectd.creation.create(workload_spec(tmp_path, "w2"))


async def test_a_failed_attach_leaves_nothing(
    protectd: Assembly, toolstack: MemoryToolstack, agent: SimAgent, tmp_path: Path
) -> None:
    toolstack.failing.add("attach_disk")
    with pytest.raises(ToolstackError):
        await protectd.creation.create(workload_spec(tmp_path))
    assert no_trace(protectd, toolstack, agent)


async def test_a_refused_container_leaves_nothing(
    protectd: Assembly, toolstack: MemoryToolstack, agent: SimAgent, tmp_path: Path
) -> None:
    agent.errors["create_container"] = pb.Error(code=3, message="create: w1: no such executable")
    with pytest.raises(Invalid, match="no such executable"):
        await protectd.creation.create(workload_spec(tmp_path))
    assert no_trace(protectd, toolstack, agent)
    assert asked(agent)[-1] == "delete_container"


async def test_a_caller_who_goes_away_leaves_nothing(
    protectd: Assembly, toolstack: MemoryToolstack, agent: SimAgent, tmp_path: Path
) -> None:
    entered, go = toolstack.gate("attach_disk")
    creating = served(protectd, protectd.creation.create(workload_spec(tmp_path)))
    await entered.wait()
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    go.set()
    await until(lambda: no_trace(protectd, toolstack, agent))


async def test_a_workload_starts_once(protectd: Assembly, tmp_path: Path) -> None:
    await protectd.creation.create(workload_spec(tmp_path))
    results = await asyncio.gather(
        start.start(protectd.registry, protectd.ports.volumes, "w1"),
        start.start(protectd.registry, protectd.ports.volumes, "w1"),
        return_exceptions=True,
    )
    assert sorted(type(result).__name__ for result in results) == ["Refused", "Workload"]


async def test_a_failed_start_is_reported(protectd: Assembly, agent: SimAgent, tmp_path: Path) -> None:
    await protectd.creation.create(workload_spec(tmp_path))
    agent.errors["start_container"] = pb.Error(code=13, message="start: w1: exec format error")
    with pytest.raises(Broken, match="exec format error"):
        await start.start(protectd.registry, protectd.ports.volumes, "w1")
    ended = await control.wait(protectd.registry, protectd.lifetime.stopping, "w1")
    assert (ended.exit_code, ended.reason) == (128, Reason.START_ERROR)
    assert "exec format error" in ended.message


async def test_endless_output_is_given_up(protectd: Assembly, agent: SimAgent, tmp_path: Path) -> None:
    await protectd.creation.create(workload_spec(tmp_path))
    await start.start(protectd.registry, protectd.ports.volumes, "w1")
    agent.write(agent.processes["w1", ""].created.stdout_stream, b"kept\n")
    agent.exit("w1", 0)
    async with asyncio.timeout(60):
        ended = await control.wait(protectd.registry, protectd.lifetime.stopping, "w1")
    assert ended.reason is Reason.COMPLETED
    assert lines(tmp_path / "w1.log") == ["stdout F kept"]


async def test_an_exit_before_the_drain_is_reported_after_the_drain(
    protectd: Assembly, agent: SimAgent, tmp_path: Path
) -> None:
    await protectd.creation.create(workload_spec(tmp_path))
    await start.start(protectd.registry, protectd.ports.volumes, "w1")
    created = agent.processes["w1", ""].created
    hasten(protectd, drain=600.0)
    agent.exit("w1", 0)
    waiting = asyncio.create_task(control.wait(protectd.registry, protectd.lifetime.stopping, "w1"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    agent.write(created.stdout_stream, b"late\n")
    agent.end(created.stdout_stream)
    agent.end(created.stderr_stream)
    await waiting
    assert lines(tmp_path / "w1.log") == ["stdout F late"]


async def test_hostile_exits_are_ignored(protectd: Assembly, agent: SimAgent, tmp_path: Path) -> None:
    await protectd.creation.create(workload_spec(tmp_path))
    await start.start(protectd.registry, protectd.ports.volumes, "w1")
    created = agent.processes["w1", ""].created
    agent.end(created.stdout_stream)
    agent.end(created.stderr_stream)
    for untrusted in (
        ProcessExited(ProcessName("unknown"), exit_code=1),
        ProcessExited(ProcessName("w1", "unknown"), exit_code=1),
        ProcessExited(ProcessName("w1"), exit_code=7, exited_at_ns=-(1 << 62)),
        ProcessExited(ProcessName("w1"), exit_code=8, exited_at_ns=1 << 62),
    ):
        protectd.exits.on_exit(protectd.registry.zones["z1"], untrusted)
    ended = await control.wait(protectd.registry, protectd.lifetime.stopping, "w1")
    assert ended.exit_code == 7
    assert ended.finished_at_ns >= ended.started_at_ns


async def test_wrong_streams_of_a_workload_fail_its_creation(
    protectd: Assembly, toolstack: MemoryToolstack, agent: SimAgent, tmp_path: Path
) -> None:
    agent._create = lambda ref, tty, stdin: pb.Reply(created=pb.ProcessCreated(pid=1))  # type: ignore[method-assign]
    with pytest.raises(Fault, match="gave streams 0, 0, 0"):
        await protectd.creation.create(workload_spec(tmp_path))
    assert no_trace(protectd, toolstack, agent)


async def test_signals_reach_running_processes(protectd: Assembly, agent: SimAgent, tmp_path: Path) -> None:
    await protectd.creation.create(workload_spec(tmp_path))
    with pytest.raises(Refused, match="does not run"):
        await control.signal(protectd.registry, "w1", 15, every=False)
    await start.start(protectd.registry, protectd.ports.volumes, "w1")
    with pytest.raises(Invalid):
        await control.signal(protectd.registry, "w1", 999, every=False)
    await control.signal(protectd.registry, "w1", 15, every=True)
    sent = agent.requests[-1].signal_process
    assert (sent.signal, sent.all, sent.process.container_id) == (15, True, "w1")


async def test_delete_of_a_running_workload_kills_and_keeps_the_last_output(
    protectd: Assembly, toolstack: MemoryToolstack, agent: SimAgent, tmp_path: Path
) -> None:
    await protectd.creation.create(workload_spec(tmp_path))
    await start.start(protectd.registry, protectd.ports.volumes, "w1")
    deleting = asyncio.create_task(protectd.workload_removal.delete("w1"))
    await until(lambda: asked(agent)[-1] == "signal_process")
    assert agent.requests[-1].signal_process.signal == 9
    with pytest.raises(Refused, match="does not run"):
        await anext(protectd.execs.execute(ExecSpec("w1", b"{}"), commands()))
    end(agent, "w1", 137, b"last\n")
    await deleting
    assert lines(tmp_path / "w1.log") == ["stdout F last"]
    assert no_trace(protectd, toolstack, agent)


async def test_delete_in_a_silent_zone_can_be_repeated(
    protectd: Assembly, toolstack: MemoryToolstack, agent: SimAgent, tmp_path: Path
) -> None:
    await protectd.creation.create(workload_spec(tmp_path))
    agent.unanswered.add("delete_container")
    hasten(protectd, call=0.5)
    with pytest.raises(TooLate):
        await protectd.workload_removal.delete("w1")
    assert protectd.registry.store.load().workload_intents["w1"].operation == "workload.delete"
    agent.unanswered.clear()
    hasten(protectd, call=10.0)
    await protectd.workload_removal.delete("w1")
    assert no_trace(protectd, toolstack, agent)


async def test_a_waiter_of_a_deleted_workload_gets_an_error(protectd: Assembly, tmp_path: Path) -> None:
    await protectd.creation.create(workload_spec(tmp_path))
    waiting = asyncio.create_task(control.wait(protectd.registry, protectd.lifetime.stopping, "w1"))
    await asyncio.sleep(0)
    await protectd.workload_removal.delete("w1")
    with pytest.raises(Missing, match="deleted"):
        await waiting


async def test_destroying_the_zone_ends_all_its_workloads(
    protectd: Assembly, toolstack: MemoryToolstack, agent: SimAgent, tmp_path: Path
) -> None:
    await protectd.creation.create(workload_spec(tmp_path))
    await start.start(protectd.registry, protectd.ports.volumes, "w1")
    running_exec = protectd.execs.execute(ExecSpec("w1", b"{}"), endless())
    taking = asyncio.create_task(anext(running_exec))
    agent.unanswered.add("create_container")
    creating = asyncio.create_task(protectd.creation.create(workload_spec(tmp_path, "w2")))
    waiting = asyncio.create_task(control.wait(protectd.registry, protectd.lifetime.stopping, "w1"))
    await until(lambda: asked(agent)[-1] == "create_container")
    await protectd.removal.destroy("z1")
    for task in (taking, creating, waiting):
        with pytest.raises((Refused, Missing)):
            await task
    assert (
        not protectd.registry.workloads
        and not protectd.registry.store.load().workloads
        and not toolstack.domains
    )


# -- exec and attach


async def test_an_exec_has_input_output_and_an_exit_code(
    protectd: Assembly, agent: SimAgent, tmp_path: Path
) -> None:
    await protectd.creation.create(workload_spec(tmp_path))
    await start.start(protectd.registry, protectd.ports.volumes, "w1")
    spec = ExecSpec("w1", b'{"args": ["cat"]}', stdin=True)
    outputs = protectd.execs.execute(spec, commands(Stdin(b"to "), Stdin(b"cat"), StdinEnd()))
    first = asyncio.create_task(anext(outputs))
    await until(lambda: any(key[1] for key in agent.processes))
    (_, exec_id), process = next(item for item in agent.processes.items() if item[0][1])
    stdin = agent.inputs[process.created.stdin_stream]
    await until(lambda: stdin.eof)
    assert stdin.read == b"to cat"
    agent.write(process.created.stdout_stream, b"out")
    assert await first == ("stdout", b"out")
    agent.write(process.created.stderr_stream, b"err")
    agent.end(process.created.stdout_stream)
    agent.end(process.created.stderr_stream)
    agent.exit("w1", 4, exec_id)
    assert [output async for output in outputs] == [("stderr", b"err"), 4]
    await until(lambda: not protectd.registry.zones["z1"].execs)
    assert asked(agent)[-1] == "delete_exec"


async def test_a_too_long_exec_is_killed(protectd: Assembly, agent: SimAgent, tmp_path: Path) -> None:
    await protectd.creation.create(workload_spec(tmp_path))
    await start.start(protectd.registry, protectd.ports.volumes, "w1")
    with pytest.raises(TooLate, match=r"longer than 0\.05 s"):
        await anext(protectd.execs.execute(ExecSpec("w1", b"{}", timeout=0.05), endless()))
    await until(lambda: asked(agent)[-1] == "delete_exec" and not protectd.registry.zones["z1"].execs)


async def test_exec_is_killed_when_its_caller_leaves(
    protectd: Assembly, agent: SimAgent, tmp_path: Path
) -> None:
    await protectd.creation.create(workload_spec(tmp_path))
    await start.start(protectd.registry, protectd.ports.volumes, "w1")
    outputs = protectd.execs.execute(ExecSpec("w1", b"{}"), endless())
    taking = asyncio.create_task(anext(outputs))
    await until(lambda: asked(agent)[-1] == "exec_process")
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    await until(lambda: asked(agent)[-1] == "delete_exec" and not protectd.registry.zones["z1"].execs)


async def test_exec_output_is_back_pressured(protectd: Assembly, agent: SimAgent, tmp_path: Path) -> None:
    await protectd.creation.create(workload_spec(tmp_path))
    await start.start(protectd.registry, protectd.ports.volumes, "w1")
    outputs = protectd.execs.execute(ExecSpec("w1", b"{}"), endless())
    first = asyncio.create_task(anext(outputs))
    await until(lambda: any(key[1] for key in agent.processes))
    process = next(process for key, process in agent.processes.items() if key[1])
    agent.write(process.created.stdout_stream, b"x" * (4 << 20))
    await first
    await asyncio.sleep(0.05)
    assert agent.outputs[process.created.stdout_stream].sent <= 512 * 1024
    await outputs.aclose()


async def test_execs_are_limited(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack, ZoneLimits(execs_per_zone=1)) as protectd:
        await protectd.launcher.launch(zone_spec())
        await protectd.creation.create(workload_spec(tmp_path))
        await start.start(protectd.registry, protectd.ports.volumes, "w1")
        first = protectd.execs.execute(ExecSpec("w1", b"{}"), endless())
        taking = asyncio.create_task(anext(first))
        await until(lambda: len(protectd.registry.zones["z1"].execs) == 1)
        with pytest.raises(Exhausted, match="1 execs"):
            await anext(protectd.execs.execute(ExecSpec("w1", b"{}"), endless()))
        taking.cancel()


async def test_a_silly_terminal_size_ends_the_exec(protectd: Assembly, tmp_path: Path) -> None:
    await protectd.creation.create(workload_spec(tmp_path))
    await start.start(protectd.registry, protectd.ports.volumes, "w1")
    with pytest.raises(Invalid, match="is not a size"):
        await anext(protectd.execs.execute(ExecSpec("w1", b"{}", tty=True), endless(Resize(0, 80))))


@pytest.mark.parametrize("once", [False, True])
async def test_an_attach_has_input_and_output(
    protectd: Assembly, agent: SimAgent, tmp_path: Path, once: bool
) -> None:
    await protectd.creation.create(workload_spec(tmp_path, stdin=True, stdin_once=once))
    created = agent.processes["w1", ""].created
    outputs = attach.attach_workload(
        protectd.registry, protectd.memory, protectd.lifetime, "w1", commands(Stdin(b"typed"))
    )
    first = asyncio.create_task(anext(outputs))
    stdin = agent.inputs[created.stdin_stream]
    await until(lambda: stdin.read == b"typed")
    await start.start(protectd.registry, protectd.ports.volumes, "w1")
    agent.write(created.stdout_stream, b"now")
    assert await first == ("stdout", b"now")
    await asyncio.sleep(0.01)
    assert stdin.eof is once
    end(agent, "w1", 5)
    assert [output async for output in outputs] == [5]
    with pytest.raises(Refused):
        await anext(
            attach.attach_workload(protectd.registry, protectd.memory, protectd.lifetime, "w1", commands())
        )


@pytest.mark.parametrize(
    ("once", "tty", "detaches"),
    [(False, False, True), (False, True, True), (True, True, True), (True, False, False)],
)
async def test_an_attach_ends_with_its_input_unless_the_workload_may_answer(
    protectd: Assembly, agent: SimAgent, tmp_path: Path, once: bool, tty: bool, detaches: bool
) -> None:
    await protectd.creation.create(workload_spec(tmp_path, stdin=True, stdin_once=once, tty=tty))
    await start.start(protectd.registry, protectd.ports.volumes, "w1")
    created = agent.processes["w1", ""].created
    typed = commands(Stdin(b"typed"), StdinEnd())
    outputs = attach.attach_workload(protectd.registry, protectd.memory, protectd.lifetime, "w1", typed)
    reading = asyncio.create_task(_all(outputs))
    stdin = agent.inputs[created.stdin_stream]
    await until(lambda: stdin.read == b"typed" and stdin.eof is once)
    if not detaches:
        agent.write(created.stdout_stream, b"answer")
        end(agent, "w1", 5)
    assert await reading == ([None] if detaches else [("stdout", b"answer"), 5])
    assert detaches is (protectd.registry.workloads["w1"].workload.state is WorkloadState.RUNNING)


async def _all(outputs: AsyncIterator[Output]) -> list[Output]:
    return [output async for output in outputs]


# -- logs


async def test_a_reopened_log_begins_a_new_file(protectd: Assembly, agent: SimAgent, tmp_path: Path) -> None:
    await protectd.creation.create(workload_spec(tmp_path))
    await start.start(protectd.registry, protectd.ports.volumes, "w1")
    stdout = agent.processes["w1", ""].created.stdout_stream
    agent.write(stdout, b"one\n")
    await until(lambda: (tmp_path / "w1.log").stat().st_size)
    (tmp_path / "w1.log").rename(tmp_path / "w1.log.1")
    await control.reopen_log(protectd.registry, "w1")
    end(agent, "w1", 0, b"two\n")
    await control.wait(protectd.registry, protectd.lifetime.stopping, "w1")
    assert lines(tmp_path / "w1.log.1") == ["stdout F one"]
    assert lines(tmp_path / "w1.log") == ["stdout F two"]
    with pytest.raises(Refused):
        await control.reopen_log(protectd.registry, "w1")


# -- reconnects and restarts


async def test_a_break_of_the_channel_loses_nothing(
    protectd: Assembly, agent: SimAgent, tmp_path: Path
) -> None:
    await protectd.creation.create(workload_spec(tmp_path))
    await start.start(protectd.registry, protectd.ports.volumes, "w1")
    agent.cut()
    end(agent, "w1", 9, b"in between\n")
    ended = await control.wait(protectd.registry, protectd.lifetime.stopping, "w1")
    assert ended.exit_code == 9
    assert lines(tmp_path / "w1.log") == ["stdout F in between"]


async def test_a_restart_loses_nothing(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(zone_spec())
        for workload in ("w1", "w2", "w3"):
            await protectd.creation.create(workload_spec(tmp_path, workload))
        await start.start(protectd.registry, protectd.ports.volumes, "w1")
        await start.start(protectd.registry, protectd.ports.volumes, "w2")
        agent = toolstack.of_zone("z1").agent
        agent.write(agent.processes["w1", ""].created.stdout_stream, b"before\n")
        await until(lambda: (tmp_path / "w1.log").stat().st_size)
    end(agent, "w1", 6, b"between\n")
    agent.processes["w2", ""].state = pb.PROCESS_STATE_RUNNING
    async with running(tmp_path, toolstack) as protectd:
        ended = await control.wait(protectd.registry, protectd.lifetime.stopping, "w1")
        assert (ended.exit_code, ended.reason) == (6, Reason.ERROR)
        assert lines(tmp_path / "w1.log") == ["stdout F before", "stdout F between"]
        end(agent, "w2", 0, b"after\n")
        assert (
            await control.wait(protectd.registry, protectd.lifetime.stopping, "w2")
        ).reason is Reason.COMPLETED
        assert lines(tmp_path / "w2.log") == ["stdout F after"]
        await start.start(protectd.registry, protectd.ports.volumes, "w3")
        assert agent.faults == []


async def test_a_restart_undoes_a_half_create(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(zone_spec())
        agent = toolstack.of_zone("z1").agent
        agent.unanswered.add("create_container")
        spec = workload_spec(tmp_path)
        files = disks.find_image_files("create", "w1", spec.stacks)
        runtime, new = protectd.creation.admit(protectd.registry.zones["z1"], spec, files)
        table = disks.DiskTable.of(runtime.workload.disks, files)
        hasten(protectd, call=0.5)
        for disk in table.specs(new):
            await toolstack.attach_disk(protectd.registry.zones["z1"].zone.domain_id, disk)
        with pytest.raises(TooLate):
            container = create._container(runtime, spec, table, TakenFiles())
            await protectd.creation.prepare(runtime, container, asyncio.Event())
        assert toolstack.of_zone("z1").disks
    agent.unanswered.clear()
    async with running(tmp_path, toolstack) as protectd:
        await until(lambda: no_trace(protectd, toolstack, agent))
        await protectd.creation.create(spec)


async def test_a_restart_finishes_a_delete(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(zone_spec())
        await protectd.creation.create(workload_spec(tmp_path))
        protectd.registry.put_workload(
            protectd.registry.workloads["w1"], protectd.registry.workloads["w1"].workload, delete.INTENT
        )
    agent = toolstack.of_zone("z1").agent
    async with running(tmp_path, toolstack) as protectd:
        await until(lambda: no_trace(protectd, toolstack, agent))


async def test_a_restart_ends_orphaned_execs(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(zone_spec())
        await protectd.creation.create(workload_spec(tmp_path))
        agent = toolstack.of_zone("z1").agent
    agent._create(pb.ProcessRef(container_id="w1", exec_id="e1"), False, False)
    async with running(tmp_path, toolstack) as protectd:
        await until(lambda: asked(agent)[-1] == "delete_exec")
        assert agent.requests[-1].delete_exec.process.exec_id == "e1"


async def test_restart_keeps_the_ends_of_ended_workloads(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    """In both cases: the zone still knows the workload after a restart, or not."""
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(zone_spec())
        agent = toolstack.of_zone("z1").agent
        for workload, code in (("w1", 3), ("w2", 0)):
            await protectd.creation.create(workload_spec(tmp_path, workload))
            await start.start(protectd.registry, protectd.ports.volumes, workload)
            end(agent, workload, code, b"said\n")
            await control.wait(protectd.registry, protectd.lifetime.stopping, workload)
        before = [protectd.registry.workloads[workload].workload for workload in ("w1", "w2")]
    del agent.processes["w1", ""]
    async with running(tmp_path, toolstack) as protectd:
        await protectd.creation.create(workload_spec(tmp_path, "w3"))
        assert [protectd.registry.workloads[workload].workload for workload in ("w1", "w2")] == before
        assert lines(tmp_path / "w2.log") == ["stdout F said"]


async def test_a_workload_its_zone_has_lost(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(zone_spec())
        await protectd.creation.create(workload_spec(tmp_path))
    toolstack.of_zone("z1").agent.processes.clear()
    async with running(tmp_path, toolstack) as protectd:
        ended = await control.wait(protectd.registry, protectd.lifetime.stopping, "w1")
        assert (ended.exit_code, ended.message) == (255, "its zone has lost it")


async def test_failed_undo_of_a_create_is_done_at_the_next_connection(
    protectd: Assembly, toolstack: MemoryToolstack, agent: SimAgent, tmp_path: Path
) -> None:
    agent.errors["create_container"] = pb.Error(code=13, message="create: w1: failed")
    agent.unanswered.add("delete_container")
    hasten(protectd, call=0.5)
    with pytest.raises(Broken, match="create: w1: failed"):
        await protectd.creation.create(workload_spec(tmp_path))
    assert toolstack.of_zone("z1").disks
    with pytest.raises(Missing):
        await start.start(protectd.registry, protectd.ports.volumes, "w1")
    agent.unanswered.clear()
    hasten(protectd, call=10.0)
    agent.cut()
    await until(lambda: no_trace(protectd, toolstack, agent))


async def test_an_attach_ends_with_the_daemon(protectd: Assembly, tmp_path: Path) -> None:
    await protectd.creation.create(workload_spec(tmp_path))
    attached = asyncio.create_task(
        anext(attach.attach_workload(protectd.registry, protectd.memory, protectd.lifetime, "w1", endless()))
    )
    waiting = asyncio.create_task(control.wait(protectd.registry, protectd.lifetime.stopping, "w1"))
    await asyncio.sleep(0.01)
    protectd.stop()
    for task in (attached, waiting):
        with pytest.raises(Unreachable, match="stopping"):
            await task


async def test_a_full_disk_does_not_hide_an_end(
    protectd: Assembly, agent: SimAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await protectd.creation.create(workload_spec(tmp_path))
    await start.start(protectd.registry, protectd.ports.volumes, "w1")

    def full(*_: object) -> None:
        raise Exhausted("write state", "the store", "database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(protectd.registry.store, "save_workload", full)
        patch.setattr(protectd.registry.store, "update_workload", full)
        with pytest.raises(Exhausted, match="disk is full"):
            await protectd.creation.create(workload_spec(tmp_path, "w2"))
        end(agent, "w1", 5)
        assert (await control.wait(protectd.registry, protectd.lifetime.stopping, "w1")).exit_code == 5
    assert "w2" not in protectd.registry.workloads
    await protectd.creation.create(workload_spec(tmp_path, "w2"))
