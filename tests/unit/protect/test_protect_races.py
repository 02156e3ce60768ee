"""Callers that go away, answers that come late, adoptions that fail: over agents in memory."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from daemonkit.faults import Refused
from protect.__main__ import claim
from protect.channel import table
from protect.config import Config
from protect.model.workload import WorkloadState
from protect.model.zone import ZoneState
from protect.state.node import End, Node
from protect.workloads import create, delete, start
from protect.workloads import exec as execs
from protect.workloads.exec import ExecSpec, Output
from protect.workloads.terminal import Command
from protect.zones import destroy, launch
from tests.support.agent.agent_sim import SimAgent
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.protect_node import hasten, running, until, workload_spec, zone_spec
from xenpod_proto.channel.v1 import channel_pb2 as pb


async def nothing_to_say() -> AsyncIterator[Command]:
    await asyncio.Event().wait()
    yield  # type: ignore[misc]  # never comes


async def first(outputs: AsyncIterator[Output]) -> Output:
    return await anext(outputs)


async def all_that_can_go_on() -> None:
    """Work that waits for nobody gets far more turns than it needs, however slow the machine is."""
    for _ in range(100):
        await asyncio.sleep(0)


def execs_in(agent: SimAgent) -> list[str]:
    return [exec_id for _, exec_id in agent.processes if exec_id]


async def test_a_start_whose_caller_goes_away_is_known(node: Node, agent: SimAgent, tmp_path: Path) -> None:
    await create.create(node, workload_spec(tmp_path))
    agent.reading.clear()
    starting = asyncio.create_task(start.start(node, "w1"))
    await all_that_can_go_on()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    agent.reading.set()
    await until(lambda: node.workloads["w1"].workload.state is WorkloadState.RUNNING)
    assert node.store.load().workloads[0].state is WorkloadState.RUNNING


async def test_an_exec_whose_caller_goes_away_before_it_was_asked_for(
    node: Node, agent: SimAgent, tmp_path: Path
) -> None:
    """It waits for the streams of a new connection to be listed, and is removed after it was made."""
    await create.create(node, workload_spec(tmp_path))
    await start.start(node, "w1")

    def greet_and_pause(agent: SimAgent, hello: pb.Hello) -> bytes:
        agent.reading.clear()
        return agent.hello()

    agent.greeting = greet_and_pause
    agent.cut()
    await until(lambda: not agent.reading.is_set())
    await until(lambda: node.zones["z1"].connected)
    asking = asyncio.create_task(first(execs.execute(node, ExecSpec("w1", b"{}"), nothing_to_say())))
    await all_that_can_go_on()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    agent.reading.set()
    await until(lambda: any(request.HasField("exec_process") for request in agent.requests))
    await until(lambda: not node.zones["z1"].execs)
    assert execs_in(agent) == []


async def test_execs_that_are_left_early_use_nothing_up(
    node: Node, agent: SimAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent forgets the streams of an exec that is removed; so must the host."""
    await create.create(node, workload_spec(tmp_path, stdin=True))
    await start.start(node, "w1")
    monkeypatch.setattr(table, "MOST_STREAMS", 12)
    for _ in range(12):
        spec = ExecSpec("w1", b"{}", stdin=True)
        leaving = asyncio.create_task(first(execs.execute(node, spec, nothing_to_say())))
        await until(lambda: execs_in(agent) != [])
        await asyncio.sleep(0.005)
        leaving.cancel()
        await asyncio.wait([leaving])
        await until(lambda: execs_in(agent) == [] and not node.zones["z1"].execs)
        assert node.zones["z1"].connected
    assert node.zones["z1"].zone.state is ZoneState.RUNNING


async def test_an_adoption_that_fails_at_first_loses_no_output(
    tmp_path: Path, toolstack: MemoryToolstack
) -> None:
    async with running(tmp_path, toolstack) as node:
        await launch.launch(node, zone_spec())
        await create.create(node, workload_spec(tmp_path, "w1"))
        await create.create(node, workload_spec(tmp_path, "w2"))
        await start.start(node, "w1")
        damaged = node.journal(node.workloads["w2"])
    kept = damaged.read_bytes()
    damaged.write_bytes(b"")
    agent = toolstack.of_zone("z1").agent
    async with running(tmp_path, toolstack) as node:
        link = None

        def tried_again() -> bool:
            nonlocal link
            made = node.zones["z1"].link
            link = link or (made and made._streams)  # type: ignore[attr-defined]
            return made is not None and made._streams is not link  # type: ignore[attr-defined]

        await until(tried_again)
        damaged.write_bytes(kept)
        await until(lambda: node.zones["z1"].answering.is_set(), 10)
        stdout = agent.processes["w1", ""].created.stdout_stream
        agent.write(stdout, b"still heard\n")
        await until(lambda: "still heard" in (tmp_path / "w1.log").read_text())
        assert not agent.outputs[stdout].forgotten
        assert agent.faults == []


async def test_a_launch_ended_twice_leaves_no_domain(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    """The zone is destroyed while it is made, and then the caller who makes it goes away, too."""
    async with running(tmp_path, toolstack) as node:
        entered, go = toolstack.gate("create")
        launching = asyncio.create_task(launch.launch(node, zone_spec()))
        await entered.wait()
        destroying = asyncio.create_task(destroy.destroy(node, "z1"))
        await all_that_can_go_on()
        launching.cancel()
        await all_that_can_go_on()
        go.set()
        await asyncio.wait([launching, destroying])
        await until(lambda: not node.zones)
        assert toolstack.domains == {}
        assert node.ledger.reserved_bytes == 0


async def test_what_is_destroyed_or_deleted_is_so_to_the_end(
    node: Node, toolstack: MemoryToolstack, tmp_path: Path
) -> None:
    """Whoever asked for it may have gone for good."""
    await create.create(node, workload_spec(tmp_path))
    for operation, left, asked in (
        ("detach_disk", node.workloads, lambda: delete.delete(node, "w1")),
        ("destroy", node.zones, lambda: destroy.destroy(node, "z1")),
    ):
        entered, go = toolstack.gate(operation)
        asking = asyncio.create_task(asked())
        await entered.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        go.set()
        await until(lambda left=left: not left)  # type: ignore[misc]
    assert toolstack.domains == {}


async def test_a_guarded_failure_that_nobody_waits_for_is_not_an_error_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise Refused("try", "it", "on purpose")

    guarding = asyncio.create_task(End().guard("z1", fail()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    guarding.cancel()
    await asyncio.wait([guarding])
    del guarding
    gc.collect()
    await asyncio.sleep(0)
    assert caplog.records == []


@pytest.mark.parametrize("shared", ["state", "run"])
async def test_one_protectd_for_each_of_its_directories(tmp_path: Path, shared: str) -> None:
    """Another one that had the same run directory would remove as strays what it does not know."""
    other = {"state": "run", "run": "state"}[shared]
    same = {f"{shared}_dir": tmp_path / shared}
    one = Config(**same, **{f"{other}_dir": tmp_path / "one"})  # type: ignore[arg-type]
    two = Config(**same, **{f"{other}_dir": tmp_path / "two"})  # type: ignore[arg-type]
    async with AsyncExitStack() as first:
        claim(one, first)
        async with AsyncExitStack() as second:
            with pytest.raises(Refused, match="another protectd runs on it"):
                claim(two, second)
    async with AsyncExitStack() as second:
        claim(two, second)


async def test_a_silent_zone_does_not_hold_up_a_stop(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as node:
        await launch.launch(node, zone_spec())
    toolstack.of_zone("z1").agent.available.clear()
    async with running(tmp_path, toolstack) as node:
        hasten(node, boot=600.0)
        await until(lambda: node.zones["z1"].link is not None)
        node.stop()
        begun = asyncio.get_running_loop().time()
        await node.tasks.close(30)
        assert asyncio.get_running_loop().time() - begun < 15
        assert node.zones["z1"].zone.state is ZoneState.RUNNING
