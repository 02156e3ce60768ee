"""An agent's frames without effect, and the bound on a reply."""

from __future__ import annotations

import asyncio

import pytest

from daemonkit.loop.token_bucket import TokenBucket
from protect.channel import frames, reply_rules
from protect.channel.frames import WINDOW, Frame, FrameDecoder, Side, Type
from protect.channel.ignored_frames import MOST_EARNED, IgnoredFrames
from protect.channel.link import Link
from protect.model.errors import ProtocolViolation
from tests.support.agent.agent_sim import SimAgent
from tests.support.agent.decoding import kept_bytes
from tests.support.agent.link_owner import LIST, Owner, create
from tests.support.waiting import until
from xenpod_proto.channel.v1 import channel_pb2 as pb


class Clock:
    """Stands still until moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_fills_up_to_its_size() -> None:
    clock = Clock()
    bucket = TokenBucket(3, 2, clock)
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
    clock.now += 1
    assert [bucket.take() for _ in range(3)] == [True, True, False]
    clock.now += 1000
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]


def test_earned_bytes_pay_for_frames_without_effect() -> None:
    ignored = IgnoredFrames(Clock())
    ignored.earn(WINDOW)
    for _ in range(WINDOW):
        ignored.frame("DATA")
    for _ in range(int(IgnoredFrames.BURST)):
        ignored.frame("DATA")
    with pytest.raises(ProtocolViolation, match="without effect; last: DATA"):
        ignored.frame("DATA")


def test_large_frames_use_up_the_bucket_sooner() -> None:
    ignored = IgnoredFrames(Clock())
    ignored.earn(WINDOW)
    for _ in range(4 + int(IgnoredFrames.BURST)):
        ignored.frame("DATA", WINDOW // 4)
    with pytest.raises(ProtocolViolation):
        ignored.frame("DATA", WINDOW // 4)


def test_earned_bytes_are_bounded_and_end_with_the_connection() -> None:
    ignored = IgnoredFrames(Clock())
    for _ in range(1000):
        ignored.earn(WINDOW)
    ignored.frame("DATA", MOST_EARNED)
    for _ in range(int(IgnoredFrames.BURST)):
        ignored.frame("DATA")
    ignored.earn(WINDOW)
    ignored.disconnected()
    with pytest.raises(ProtocolViolation):
        ignored.frame("DATA")


async def test_a_whole_window_of_single_bytes_is_no_violation() -> None:
    """An honest agent's worst: a stream is given up while all it has credit for is under way."""
    agent, owner = SimAgent(), Owner()
    link = Link("z1", agent.dial, owner)
    await link.open(5)
    created = (await link.call(create("c1", stdin=True), 5)).created
    link.drop_output(created.stdout_stream)
    link.drop_input(created.stdin_stream)
    agent.outputs[created.stdout_stream].forgotten = True
    for at in range(WINDOW):
        agent.raw(frames.encode(frames.data(created.stdout_stream, at, b"x", fin=at == WINDOW - 1)))
    # Frames up to the number of bytes, on a machine that may be busy with other work.
    await until(lambda: not agent.backlog, 200)
    await link.call(LIST, 60)
    assert owner.violations == []
    for _ in range(int(IgnoredFrames.BURST) + 100):
        agent.send(frames.credit(created.stdin_stream, 0, WINDOW))
    await until(lambda: bool(owner.violations))
    assert "without effect" in owner.violations[0]
    await link.close()
    await agent.stop()


async def test_credit_for_unnamed_streams_is_not_free() -> None:
    agent, owner = SimAgent(), Owner()
    link = Link("z1", agent.dial, owner)
    agent.unanswered.add("list_processes")
    owner.on_connected = lambda: asyncio.sleep(3600)
    opening = asyncio.create_task(link.open(60))
    await until(lambda: bool(owner.hellos))
    # A machine that stalls refills the bucket by PER_SECOND.
    for _ in range(2 * int(IgnoredFrames.BURST)):
        agent.send(frames.credit(77, 0, WINDOW))
    with pytest.raises(ProtocolViolation, match="CREDIT before the list"):
        await opening
    await agent.stop()


NUMBERS = [one.name for one in pb.ContainerStats.DESCRIPTOR.fields if one.type == one.TYPE_UINT64]
ROW = pb.ContainerStats(
    id="c" * 64,
    cpu_pressure=pb.Pressure(some_avg10=1.5),
    **dict.fromkeys(NUMBERS, (1 << 64) - 1),  # type: ignore[arg-type]
)
PROCESS = pb.Process(
    process=pb.ProcessRef(container_id="c" * 256, exec_id="e" * 256),
    created=pb.ProcessCreated(stdin_stream=1, stdout_stream=2, stderr_stream=3, pid=4),
    exited=pb.ProcessExited(process=pb.ProcessRef(container_id="c" * 256, exec_id="e" * 256), exit_code=255),
)
HONEST: dict[str, pb.Reply] = {
    "get_stats": pb.Reply(
        stats=pb.Stats(
            containers=[ROW] * pb.LIMIT_CONTAINERS,
            zone=pb.ZoneStats(interfaces=[pb.InterfaceStats(name="e" * 15, rx_bytes=1 << 60)] * 32),
        )
    ),
    "list_processes": pb.Reply(
        processes=pb.ProcessList(
            processes=[pb.Process(process=PROCESS.process, created=PROCESS.created)] * 300 + [PROCESS] * 20,
            connections=[pb.Dialed(in_stream=1 << 31, out_stream=1 << 31)] * pb.LIMIT_CONNECTIONS,
        )
    ),
    "create_container": pb.Reply(error=pb.Error(code=9, message="m" * 4096)),
    "start_container": pb.Reply(done=pb.Empty(), pid=1 << 31),
}


@pytest.mark.parametrize("operation", HONEST)
def test_the_largest_honest_reply_is_allowed(operation: str) -> None:
    payload = HONEST[operation].SerializeToString()
    reply_rules.check_reply(operation, payload)
    assert len(payload) <= reply_rules.longest(operation)


def field(number: int, content: bytes) -> bytes:
    """A message in a message."""
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def varint(number: int) -> bytes:
    more = b""
    while number > 0x7F:
        more += bytes([number & 0x7F | 0x80])
        number >>= 7
    return more + bytes([number])


def stats(*fields: bytes) -> bytes:
    return field(5, b"".join(fields))


TOO_MUCH: dict[str, tuple[str, bytes]] = {
    "rows of nothing": ("get_stats", stats(field(1, b"") * 200)),
    "a long row": ("get_stats", stats(field(1, b"\x10\x01" * 2000))),
    "interfaces of nothing": ("get_stats", stats(field(2, b"2\x00" * 500))),
    "the zone again and again": ("get_stats", stats(field(2, b"") * 200)),
    "statistics again and again": ("get_stats", stats() * 100),
    "a long whole": ("get_stats", stats(field(1, b"x" * 2000) * 100)),
    "connections of nothing": ("list_processes", field(4, field(2, b"") * 600)),
    "a long error": ("dial", b"\x0a" + varint(9000) + b"x" * 9000),
    "a group": ("get_stats", stats(b"\x0b\x0c")),
    "a number without an end": ("get_stats", stats(b"\x10" + b"\xff" * 11)),
    "a number that is cut off": ("get_stats", b"\x28\xff"),
    "a message beyond its own": ("get_stats", b"\x2a\x7f\x00"),
    "eight bytes of which there are four": ("get_stats", stats(b"\x11\x00\x00\x00\x00")),
}


@pytest.mark.parametrize(("operation", "payload"), TOO_MUCH.values(), ids=TOO_MUCH.keys())
def test_an_impossible_amount_is_a_violation(operation: str, payload: bytes) -> None:
    with pytest.raises(ProtocolViolation, match=f"REPLY to {operation}"):
        reply_rules.check_reply(operation, payload)


@pytest.mark.parametrize("operation", ["get_stats", "list_processes"])
def test_fields_of_a_later_agent_are_passed_over(operation: str) -> None:
    later = b"\x9a\x06\x03abc" + b"\xa1\x06" + b"\x00" * 8 + b"\xad\x06" + b"\x00" * 4 + b"\xb0\x06\x01"
    reply_rules.check_reply(operation, HONEST[operation].SerializeToString() + later)


def test_a_reply_is_refused_by_its_header() -> None:
    """No byte of the reply is kept."""
    decoder = FrameDecoder(Side.AGENT, {1: 100, 2: 200}.__getitem__)
    head = frames.HEADER.pack(Type.REPLY, 0, 0, 2, 200)
    decoder.add(head + b"x" * 200)
    assert decoder.take() == Frame(Type.REPLY, 2, b"x" * 200)
    decoder.add(frames.HEADER.pack(Type.REPLY, 0, 0, 1, 101))
    with pytest.raises(ProtocolViolation, match="REPLY of 101 bytes"):
        decoder.take()
    assert kept_bytes(decoder) == 0
