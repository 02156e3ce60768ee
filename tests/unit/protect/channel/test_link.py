"""Link against an agent in memory: calls, streams, reconnects."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from daemonkit import faults
from daemonkit.loop import fair_scheduler
from daemonkit.loop.fair_scheduler import FairScheduler
from daemonkit.loop.in_flight import InFlight
from protect.channel.calls import MAX_QUERIES, MOST_OPEN
from protect.channel.frames import Frame, Type
from protect.channel.link import Link
from protect.model.errors import DomainGone, LinkDown
from protect.model.process import AgentHello
from tests.support.agent.agent_sim import SimAgent
from tests.support.agent.link_owner import LIST, Collector, Owner, create
from tests.support.waiting import until
from xenpod_proto.channel.v1 import channel_pb2 as pb

STATS = pb.Request(get_stats=pb.GetStats())
FACTS = pb.Request(get_facts=pb.GetFacts())


@pytest.fixture
async def agent() -> SimAgent:
    return SimAgent()


@pytest.fixture
async def events() -> Owner:
    return Owner()


@pytest.fixture
async def link(agent: SimAgent, events: Owner):  # type: ignore[no-untyped-def]
    link = Link("z1", agent.dial, events)
    yield link
    await link.close()
    await agent.stop()
    assert agent.faults == []


async def test_open_greets_and_calls_work(link: Link, agent: SimAgent, events: Owner) -> None:
    hello = await link.open(5)
    assert hello == AgentHello(
        agent.boot_id,
        agent_version="sim",
        kernel_release="6.1",
        file_volumes=True,
        anonymous_volumes=True,
        resizes=True,
    )
    assert events.hellos == [(hello, True)]
    assert link.connected
    reply = await link.call(pb.Request(get_facts=pb.GetFacts()), 5)
    assert reply.facts.pid1 == "init"


async def test_calls_go_on_while_another_zone_has_used_up_the_loop(
    agent: SimAgent, events: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While calls are in flight the loop rests from a zone of this kind, here for a minute."""
    monkeypatch.setattr(fair_scheduler, "REST_SECONDS", 60.0)
    in_flight = InFlight()
    scheduler = FairScheduler(in_flight)
    hog = scheduler.share()

    async def work() -> None:
        while True:
            begun = time.thread_time()
            while time.thread_time() - begun < fair_scheduler.CARRIED_SECONDS:
                pass
            await asyncio.sleep(0)

    link = Link("z1", agent.dial, events, scheduler=scheduler)
    async with asyncio.timeout(30):
        with in_flight.call():
            hogging = asyncio.create_task(hog.run(work))
            await link.open(60)
            for _ in range(200):
                await link.call(FACTS, 60)
                await link.ask(STATS)
    hogging.cancel()
    await link.close()
    await agent.stop()
    assert agent.faults == []


async def test_a_call_before_open_is_link_down(link: Link) -> None:
    with pytest.raises(LinkDown):
        await link.call(LIST, 1)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(3, faults.Invalid), (5, faults.Missing), (6, faults.Exists), (9, faults.Refused), (8, faults.Exhausted)]
    + [(12, faults.Unsupported), (13, faults.Broken), (2, faults.Broken), (99, faults.Broken)],
)
async def test_errors_become_faults(link: Link, agent: SimAgent, code: int, kind: type[faults.Fault]) -> None:
    agent.errors["start_container"] = pb.Error(code=code, message="start: c1: no\x1b[0m way")
    await link.open(5)
    with pytest.raises(kind) as caught:
        await link.call(pb.Request(start_container=pb.StartContainer(id="c1")), 5)
    assert type(caught.value) is kind
    assert "no" in caught.value.cause and "\x1b" not in caught.value.cause


async def test_too_late_and_cancelled_calls_leave_the_link_healthy(link: Link, agent: SimAgent) -> None:
    agent.unanswered.add("get_stats")
    await link.open(5)
    with pytest.raises(faults.TooLate):
        await link.call(pb.Request(get_stats=pb.GetStats()), 0.01)
    task = asyncio.create_task(link.call(pb.Request(get_stats=pb.GetStats()), 10))
    await until(lambda: len(agent.requests) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # The late answers arrive now, and belong to no call.
    for call_id in (1, 2):
        agent.send(Frame(Type.REPLY, call_id, pb.Reply(stats=pb.Stats()).SerializeToString()))
    assert (await link.call(LIST, 5)).HasField("processes")
    assert agent.connections == 1


async def test_output_comes_whole_and_finishes(link: Link, agent: SimAgent) -> None:
    await link.open(5)
    created = (await link.call(create("c1"), 5)).created
    payload = bytes(range(256)) * 2000
    agent.write(created.stdout_stream, payload)
    agent.end(created.stdout_stream)
    sink = Collector()
    link.output(created.stdout_stream, sink)
    await asyncio.wait_for(sink.finished.wait(), 60)
    assert sink.data == payload
    await until(lambda: agent.outputs[created.stdout_stream].forgotten)
    assert not agent.outputs[created.stdout_stream].given_up


async def test_a_slow_sink_holds_back_only_its_own_stream(link: Link, agent: SimAgent) -> None:
    await link.open(5)
    created = (await link.call(create("c1"), 5)).created
    slow, fast = Collector(), Collector()
    slow.gate.clear()
    link.output(created.stdout_stream, slow)
    link.output(created.stderr_stream, fast)
    agent.write(created.stdout_stream, b"s" * 500_000)
    agent.write(created.stderr_stream, b"f" * 500_000)
    await fast.until(500_000)
    assert agent.outputs[created.stdout_stream].sent <= 65_536
    slow.gate.set()
    await slow.until(500_000)


async def test_input_is_back_pressured_and_arrives(link: Link, agent: SimAgent) -> None:
    await link.open(5)
    created = (await link.call(create("c1", stdin=True), 5)).created
    source = agent.inputs[created.stdin_stream]
    source.reading = False
    stdin = link.input(created.stdin_stream)
    payload = random.Random(1).randbytes(200_000)
    writing = asyncio.create_task(stdin.write(payload))
    await until(lambda: len(source.waiting) == 65_536)
    assert not writing.done()
    agent.resume_reading(created.stdin_stream)
    await asyncio.wait_for(writing, 60)
    await stdin.finish()
    await until(lambda: source.eof)
    assert source.read == payload
    with pytest.raises(faults.Refused):
        await stdin.write(b"more")


async def test_reconnects_and_resumes_both_ways(link: Link, agent: SimAgent, events: Owner) -> None:
    await link.open(5)
    created = (await link.call(create("c1", stdin=True), 5)).created

    async def relist() -> None:
        await link.call(LIST, 5)

    events.on_connected = relist
    sink = Collector()
    link.output(created.stdout_stream, sink)
    stdin = link.input(created.stdin_stream)
    agent.write(created.stdout_stream, b"a" * 100_000)
    await sink.until(10)
    agent.cut()
    await stdin.write(b"in " * 1000)
    agent.write(created.stdout_stream, b"b" * 100_000)
    await sink.until(200_000)
    assert sink.data == b"a" * 100_000 + b"b" * 100_000
    await until(lambda: agent.inputs[created.stdin_stream].read == b"in " * 1000)
    assert agent.connections == 2
    assert [new for _, new in events.hellos] == [True, False]


async def test_listed_outputs_nobody_registers_are_given_up(agent: SimAgent, events: Owner) -> None:
    first = Link("z1", agent.dial, events)
    await first.open(5)
    kept = (await first.call(create("c1"), 5)).created
    await first.close()
    second = Link("z1", agent.dial, events)
    sink = Collector()

    async def adopt() -> None:
        await second.call(LIST, 5)
        second.output(kept.stdout_stream, sink, 0)

    events.on_connected = adopt
    agent.write(kept.stdout_stream, b"hello")
    agent.write(kept.stderr_stream, b"x" * 100_000)
    await second.open(5)
    await sink.until(5)
    await until(lambda: agent.outputs[kept.stderr_stream].given_up)
    assert not agent.outputs[kept.stdout_stream].forgotten
    with pytest.raises(faults.Missing):
        second.output(kept.stderr_stream, Collector())
    await second.close()
    assert agent.faults == []


async def test_calls_open_when_the_connection_breaks_are_link_down(link: Link, agent: SimAgent) -> None:
    agent.unanswered.add("get_stats")
    await link.open(5)
    task = asyncio.create_task(link.call(pb.Request(get_stats=pb.GetStats()), 10))
    await until(lambda: len(agent.requests) == 1)
    agent.available.clear()
    agent.cut()
    with pytest.raises(LinkDown):
        await task
    assert not link.connected
    agent.available.set()
    await until(lambda: link.connected)


async def test_exit_events_reach_the_owner(link: Link, agent: SimAgent, events: Owner) -> None:
    await link.open(5)
    await link.call(create("c1"), 5)
    agent.exit("c1", 137)
    await until(lambda: len(events.exits) == 1)
    assert events.exits[0].exit_code == 137


async def test_domain_gone_ends_the_tries(events: Owner) -> None:
    async def dial() -> None:
        raise DomainGone("connect", "z1", "it ended")

    link = Link("z1", dial, events)  # type: ignore[arg-type]
    with pytest.raises(DomainGone):
        await link.open(5)
    assert events.violations == []
    await link.close()


async def test_open_is_too_late_when_no_agent_comes(events: Owner) -> None:
    agent = SimAgent()
    agent.available.clear()
    link = Link("z1", agent.dial, events)
    with pytest.raises(faults.TooLate):
        await link.open(0.05)
    assert not link.connected


async def test_a_new_boot_forgets_the_old_streams(link: Link, agent: SimAgent, events: Owner) -> None:
    await link.open(5)
    created = (await link.call(create("c1", stdin=True), 5)).created
    stdin = link.input(created.stdin_stream)
    link.output(created.stdout_stream, Collector())
    agent.reboot()
    await until(lambda: len(events.hellos) == 2)
    assert events.hellos[1][1] is True
    with pytest.raises(LinkDown):
        await stdin.write(b"x")
    again = (await link.call(create("c1"), 5)).created
    assert again.stdout_stream == created.stdout_stream
    sink = Collector()
    link.output(again.stdout_stream, sink)
    agent.write(again.stdout_stream, b"new")
    await sink.until(3)


async def test_more_calls_than_may_be_open_wait(link: Link, agent: SimAgent) -> None:
    await link.open(5)
    replies = await asyncio.gather(*(link.call(LIST, 5) for _ in range(300)))
    assert len(replies) == 300
    agent.unanswered.add("get_stats")
    stuck = [asyncio.create_task(link.call(STATS, 30)) for _ in range(MOST_OPEN)]
    await until(lambda: sum(r.HasField("get_stats") for r in agent.requests) == MOST_OPEN)
    with pytest.raises(faults.TooLate):
        await link.call(LIST, 0.05)
    for task in stuck:
        task.cancel()
    await asyncio.gather(*stuck, return_exceptions=True)


async def test_questions_wait_for_no_other_calls(link: Link, agent: SimAgent) -> None:
    """Questions have their own places; the agent never gets more than its 64."""
    agent.unanswered.add("get_stats")
    await link.open(5)
    stuck = [asyncio.create_task(link.call(STATS, 30)) for _ in range(MOST_OPEN + 1)]
    await until(lambda: len(agent.requests) == MOST_OPEN)
    answers = [link.ask(FACTS) for _ in range(MAX_QUERIES)]
    with pytest.raises(faults.Exhausted):
        link.ask(FACTS)
    async with asyncio.timeout(30):
        assert [(await answer).facts.pid1 for answer in answers] == ["init"] * MAX_QUERIES
        agent.errors["get_facts"] = pb.Error(code=9, message="facts: none")
        with pytest.raises(faults.Refused, match="none"):
            await link.ask(FACTS)
    assert MOST_OPEN + MAX_QUERIES == 64 and len(agent.requests) == 64 + 1
    for task in stuck:
        task.cancel()
    await asyncio.gather(*stuck, return_exceptions=True)


async def test_a_question_fails_with_its_connection(link: Link, agent: SimAgent) -> None:
    with pytest.raises(LinkDown):
        link.ask(STATS)
    agent.unanswered.add("get_stats")
    await link.open(5)
    answer = link.ask(STATS)
    await link.close()
    with pytest.raises(LinkDown):
        await answer
