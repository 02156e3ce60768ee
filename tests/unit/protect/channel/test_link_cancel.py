"""Cancelling at any moment leaves nothing half done and nothing running."""

from __future__ import annotations

import asyncio
import random

import pytest

from daemonkit.faults import Missing, TooLate
from protect.channel.link import Link
from protect.model.errors import LinkDown
from tests.support.agent.agent_sim import SimAgent
from tests.support.agent.link_owner import LIST, Collector, Owner, create
from tests.support.waiting import until
from xenpod_proto.channel.v1 import channel_pb2 as pb


def left() -> set[str]:
    """Names of a link's running tasks."""
    return {t.get_name() for t in asyncio.all_tasks() if t.get_name().startswith(("link ", "output "))}


async def test_open_cancelled_while_no_agent_answers() -> None:
    agent = SimAgent()
    agent.available.clear()
    link = Link("z1", agent.dial, Owner())
    opening = asyncio.create_task(link.open(30))
    await asyncio.sleep(0.01)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert left() == set()


async def test_close_while_connected_runs() -> None:
    agent, owner = SimAgent(), Owner()
    link = Link("z1", agent.dial, owner)
    inside = asyncio.Event()

    async def for_ever() -> None:
        inside.set()
        await asyncio.Event().wait()

    owner.on_connected = for_ever
    opening = asyncio.create_task(link.open(30))
    await inside.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert left() == set()
    assert not link.connected
    await agent.stop()


async def test_a_set_up_cancelled_from_inside_is_repeated() -> None:
    agent, owner = SimAgent(), Owner()
    link = Link("z1", agent.dial, owner)

    async def cancelled_once() -> None:
        if len(owner.hellos) == 1:
            raise asyncio.CancelledError

    owner.on_connected = cancelled_once
    await link.open(5)
    assert len(owner.hellos) == 2
    await link.close()
    await agent.stop()


@pytest.mark.parametrize("seed", range(20))
async def test_close_at_any_moment_while_connections_break(seed: int) -> None:
    """Closing must never be forgotten, beside any other failure at the same moment."""
    rng = random.Random(seed)
    agent, owner = SimAgent(chunk=lambda: rng.choice([1, 5, 100_000])), Owner()
    link = Link("z1", agent.dial, owner)

    async def relist() -> None:
        await link.call(LIST, 5)

    owner.on_connected = relist
    await link.open(5)
    created = (await link.call(create("c1", stdin=True), 5)).created
    link.output(created.stdout_stream, Collector())
    agent.write(created.stdout_stream, b"x" * 100_000)
    calls = [asyncio.create_task(link.call(LIST, 5)) for _ in range(5)]
    for _ in range(rng.randint(0, 12)):
        await asyncio.sleep(0)
    agent.cut()
    for _ in range(rng.randint(0, 4)):
        await asyncio.sleep(0)
    await asyncio.wait_for(link.close(), 5)
    assert left() == set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, pb.Reply | LinkDown) for result in results)
    await agent.stop()


@pytest.mark.parametrize("steps", range(12))
async def test_a_call_cancelled_after_any_step(steps: int) -> None:
    agent, owner = SimAgent(), Owner()
    link = Link("z1", agent.dial, owner)
    await link.open(5)
    call = asyncio.create_task(link.call(create("c1"), 5))
    for _ in range(steps):
        await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    # The link knows the results of the call, if any, and their output is not a violation.
    listed = (await link.call(LIST, 5)).processes.processes
    for process in listed:
        agent.write(process.created.stdout_stream, b"x" * 100)
        if call.cancelled():
            # No caller knows of the streams, and no caller will ask for them.
            made = (process.created.stdout_stream, process.created.stderr_stream)
            await until(lambda made=made: all(agent.outputs[number].given_up for number in made))
            continue
        sink = Collector()
        link.output(process.created.stdout_stream, sink)
        await sink.until(100)
    assert owner.violations == [] and agent.faults == [] and agent.connections == 1
    await link.close()
    await agent.stop()


async def test_a_stream_with_a_busy_sink_can_be_dropped() -> None:
    agent, owner = SimAgent(), Owner()
    link = Link("z1", agent.dial, owner)
    await link.open(5)
    created = (await link.call(create("c1"), 5)).created
    sink = Collector()
    sink.gate.clear()
    link.output(created.stdout_stream, sink)
    agent.write(created.stdout_stream, b"x" * 100_000)
    await until(lambda: agent.outputs[created.stdout_stream].sent > 0)
    link.drop_output(created.stdout_stream)
    link.drop_output(created.stdout_stream)
    await until(lambda: agent.outputs[created.stdout_stream].given_up)
    await asyncio.sleep(0)
    assert {name for name in left() if name.startswith("output ")} == set()
    assert sink.data == b""
    await link.close()
    await agent.stop()


async def test_a_late_answer_leaves_no_stream() -> None:
    agent, owner = SimAgent(), Owner()
    link = Link("z1", agent.dial, owner)
    await link.open(5)
    agent.reading.clear()
    with pytest.raises(TooLate):
        await link.call(create("c1", stdin=True), 0.02)
    agent.reading.set()
    await until(lambda: ("c1", "") in agent.processes)
    created = agent.processes["c1", ""].created
    for number in (created.stdout_stream, created.stderr_stream):
        await until(lambda number=number: agent.outputs[number].given_up)
    with pytest.raises(Missing):
        link.input(created.stdin_stream)
    assert owner.violations == [] and agent.faults == []
    await link.close()
    await agent.stop()
