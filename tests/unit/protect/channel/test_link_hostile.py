"""A hostile agent is cut off and reported once; the agent gains nothing else."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable

import pytest

from daemonkit.faults import TooLate
from protect.channel import frames, wire
from protect.channel.frames import Frame, Type
from protect.channel.link import Link
from protect.channel.messages import BURST_EVENTS
from protect.channel.table import MOST_STREAMS
from protect.model.errors import LinkDown, ProtocolViolation
from tests.support.agent.agent_sim import SimAgent
from tests.support.agent.link_owner import LIST, Collector, Owner, create
from tests.support.waiting import until
from xenpod_proto.channel.v1 import channel_pb2 as pb


def reply(call_id: int, message: pb.Reply) -> Frame:
    return Frame(Type.REPLY, call_id, message.SerializeToString())


def hello_bytes(**changes: object) -> bytes:
    values: dict[str, object] = {"version_min": 1, "version_max": 1, "boot_id": b"b" * 16}
    return frames.encode(Frame(Type.HELLO, 0, pb.Hello(**(values | changes)).SerializeToString()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "greeting",
    [
        hello_bytes(version_min=0, version_max=0),
        hello_bytes(version_min=2, version_max=2),
        hello_bytes(version_min=1, version_max=2),
        hello_bytes(boot_id=b""),
        hello_bytes(boot_id=b"x" * 17),
        frames.encode(Frame(Type.HELLO, 0, b"\xff\xff\xff")),
        frames.encode(Frame(Type.REPLY, 1, b"")),
        frames.encode(Frame(Type.EVENT, 0, b"")),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
async def test_a_bad_greeting_is_a_violation(greeting: bytes) -> None:
    agent, owner = SimAgent(), Owner()
    agent.greeting = lambda agent, hello: greeting
    link = Link("z1", agent.dial, owner)
    with pytest.raises(ProtocolViolation):
        await link.open(5)
    assert len(owner.violations) == 1
    assert agent.connections == 1
    assert owner.hellos == []
    await agent.stop()


async def test_a_silent_agent_is_given_up_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HELLO_SECONDS", 0.02)
    agent, owner = SimAgent(), Owner()
    agent.greeting = lambda agent, hello: b""
    link = Link("z1", agent.dial, owner)
    with pytest.raises(TooLate, match="no HELLO"):
        await link.open(0.3)
    assert 2 <= agent.connections <= 8
    assert owner.violations == []
    await agent.stop()


Attack = Callable[[SimAgent], None]


def send_over_credit(agent: SimAgent) -> None:
    for at in (0, 65_536):
        agent.send(frames.data(2, at, b"x" * 65_536))


LONG_NAME = pb.ProcessRef(container_id="c" * 300)
ATTACKS: dict[str, Attack] = {
    "second hello": lambda agent: agent.raw(hello_bytes()),
    "garbage": lambda agent: agent.raw(b"\xde\xad\xbe\xef" * 10),
    "unknown reply": lambda agent: agent.send(reply(77, pb.Reply(done=pb.Empty()))),
    "data on no stream": lambda agent: agent.send(frames.data(99, 0, b"x")),
    "credit on no stream": lambda agent: agent.send(frames.credit(99, 0, 1)),
    "data on stdin": lambda agent: agent.send(frames.data(3, 0, b"x")),
    "credit on stdout": lambda agent: agent.send(frames.credit(1, 0, 1)),
    "data at a wrong offset": lambda agent: agent.send(frames.data(1, 5, b"x")),
    "data over credit": send_over_credit,
    "credit beyond what was sent": lambda agent: agent.send(frames.credit(3, 10, 20)),
    "event that is none": lambda agent: agent.send(Frame(Type.EVENT, 0, b"")),
    "event that cannot be parsed": lambda agent: agent.send(Frame(Type.EVENT, 0, b"\x0a\xff")),
    "exit of nothing": lambda agent: agent.send(
        Frame(Type.EVENT, 0, pb.Event(process_exited=pb.ProcessExited()).SerializeToString())
    ),
    "exit of a long name": lambda agent: agent.send(
        Frame(Type.EVENT, 0, pb.Event(process_exited=pb.ProcessExited(process=LONG_NAME)).SerializeToString())
    ),
    "exit code out of range": lambda agent: agent.send(
        Frame(
            Type.EVENT,
            0,
            pb.Event(
                process_exited=pb.ProcessExited(process=pb.ProcessRef(container_id="c1"), exit_code=256)
            ).SerializeToString(),
        )
    ),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
async def test_a_broken_rule_cuts_off_for_good(attack: Attack) -> None:
    agent, owner = SimAgent(), Owner()
    link = Link("z1", agent.dial, owner)
    await link.open(5)
    created = (await link.call(create("c1", stdin=True), 5)).created
    assert (created.stdout_stream, created.stderr_stream, created.stdin_stream) == (1, 2, 3)
    await link.call(LIST, 5)
    agent.unanswered.add("get_stats")
    waiting = asyncio.create_task(link.call(pb.Request(get_stats=pb.GetStats()), 30))
    writing = asyncio.create_task(link.input(3).write(b"x" * 200_000))
    agent.inputs[3].reading = False
    await asyncio.sleep(0.01)
    attack(agent)
    with pytest.raises(ProtocolViolation):
        await waiting
    with pytest.raises(ProtocolViolation):
        await writing
    await until(lambda: bool(owner.violations))
    await asyncio.sleep(0.15)
    assert len(owner.violations) == 1
    assert agent.connections == 1, "no further try after a violation"
    assert not link.connected
    with pytest.raises(ProtocolViolation):
        await link.call(LIST, 1)
    # Only a new open tries again.
    await link.open(5)
    assert (await link.call(LIST, 5)).processes.processes
    await link.close()
    with pytest.raises(LinkDown):
        await link.call(LIST, 1)
    await agent.stop()


WRONG_ANSWERS: dict[str, tuple[pb.Request, bytes]] = {
    "nothing": (LIST, b""),
    "no protobuf": (LIST, b"\xff\xff"),
    "another result": (LIST, pb.Reply(done=pb.Empty()).SerializeToString()),
    "an error that is none": (LIST, pb.Reply(error=pb.Error()).SerializeToString()),
    "an error and a result": (
        LIST,
        pb.Reply(error=pb.Error(code=5), processes=pb.ProcessList()).SerializeToString(),
    ),
    "streams that are one": (
        create("c2"),
        pb.Reply(created=pb.ProcessCreated(stdout_stream=7, stderr_stream=7)).SerializeToString(),
    ),
    "a stream used before": (
        create("c2"),
        pb.Reply(created=pb.ProcessCreated(stdout_stream=1)).SerializeToString(),
    ),
    "a stream turned round": (
        LIST,
        pb.Reply(
            processes=pb.ProcessList(processes=[pb.Process(created=pb.ProcessCreated(stdin_stream=1))])
        ).SerializeToString(),
    ),
    "too many processes": (
        LIST,
        pb.Reply(processes=pb.ProcessList(processes=[pb.Process()] * 5000)).SerializeToString(),
    ),
    "too many streams": (
        LIST,
        pb.Reply(
            processes=pb.ProcessList(
                processes=[
                    pb.Process(
                        created=pb.ProcessCreated(stdin_stream=n, stdout_stream=n + 1, stderr_stream=n + 2)
                    )
                    for n in range(10, MOST_STREAMS + 10, 3)
                ]
            )
        ).SerializeToString(),
    ),
}


@pytest.mark.parametrize(("request_", "payload"), WRONG_ANSWERS.values(), ids=WRONG_ANSWERS.keys())
async def test_a_wrong_answer_is_a_violation(request_: pb.Request, payload: bytes) -> None:
    agent, owner = SimAgent(), Owner()
    link = Link("z1", agent.dial, owner)
    await link.open(5)
    await link.call(create("c1"), 5)
    agent.unanswered |= {"list_processes", "create_container"}
    task = asyncio.create_task(link.call(request_, 5))
    await until(lambda: len(agent.requests) == 2)
    agent.send(Frame(Type.REPLY, 2, payload))
    with pytest.raises(ProtocolViolation):
        await task
    await until(lambda: len(owner.violations) == 1)
    await link.close()
    await agent.stop()


async def test_a_flood_of_events_is_a_violation() -> None:
    agent, owner = SimAgent(), Owner()
    link = Link("z1", agent.dial, owner)
    await link.open(5)
    exited = pb.ProcessExited(process=pb.ProcessRef(container_id="c1"))
    raw = frames.encode(Frame(Type.EVENT, 0, pb.Event(process_exited=exited).SerializeToString()))
    for _ in range(100):
        agent.raw(raw * 100)
    await until(lambda: bool(owner.violations))
    assert BURST_EVENTS - 1 <= len(owner.exits) < BURST_EVENTS + 1000
    await link.close()
    await agent.stop()


async def test_nobody_reads_and_memory_stays_bounded() -> None:
    """Streams without a sink hold one window each, and a flood of ignored frames holds nothing."""
    agent, owner = SimAgent(), Owner()
    link = Link("z1", agent.dial, owner)
    await link.open(5)
    created = (await link.call(create("c1"), 5)).created
    link.drop_output(created.stderr_stream)
    tracemalloc.start()
    agent.write(created.stdout_stream, b"x" * 300_000)
    flood = frames.encode(frames.data(created.stderr_stream, 0, b"y" * 16_384))
    for _ in range(50):
        agent.raw(flood * 4)
        await asyncio.sleep(0)
    await until(lambda: not agent.backlog and agent.outputs[created.stdout_stream].sent >= frames.WINDOW)
    await asyncio.sleep(0.02)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert agent.outputs[created.stdout_stream].sent == frames.WINDOW
    assert peak < 8_000_000
    assert owner.violations == []
    await link.close()
    await agent.stop()


async def test_an_agent_without_reads_makes_calls_late_not_stuck() -> None:
    agent, owner = SimAgent(), Owner()
    link = Link("z1", agent.dial, owner)
    await link.open(5)
    agent.reading.clear()
    big = pb.Request(create_container=pb.CreateContainer(id="c1", config_json=b"{" * 500_000))
    results = await asyncio.gather(*(link.call(big, 0.05) for _ in range(5)), return_exceptions=True)
    assert all(isinstance(result, TooLate) for result in results)
    await asyncio.wait_for(link.close(), 1)
    await agent.stop()


async def test_an_agent_with_early_hang_ups_is_not_tried_in_a_tight_loop() -> None:
    agent, owner = SimAgent(), Owner()
    link = Link("z1", agent.dial, owner)

    async def hang_up() -> None:
        agent.cut()

    owner.on_connected = hang_up
    await link.open(5)
    await asyncio.sleep(0.4)
    assert agent.connections <= 8
    await link.close()
    await agent.stop()


async def test_a_failing_sink_gives_up_its_stream_only() -> None:
    class Failing(Collector):
        async def write(self, data: bytes) -> int:
            raise BrokenPipeError("nobody reads")

    agent, owner = SimAgent(), Owner()
    link = Link("z1", agent.dial, owner)
    await link.open(5)
    created = (await link.call(create("c1"), 5)).created
    good = Collector()
    link.output(created.stdout_stream, Failing())
    link.output(created.stderr_stream, good)
    agent.write(created.stdout_stream, b"x")
    await until(lambda: agent.outputs[created.stdout_stream].given_up)
    agent.write(created.stderr_stream, b"y")
    await good.until(1)
    await link.close()
    await agent.stop()
    assert agent.faults == []
