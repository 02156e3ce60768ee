"""The channel's rules: a violation closes the connection, and a new connection goes on from its state."""

from __future__ import annotations

import json
import random
import socket
import struct
from collections.abc import Callable

import pytest

from protect.channel import frames
from protect.channel.frames import Frame, Type
from tests.support.agent.golden_frames import PATH
from tests.support.agent.zone import Zone
from tests.support.agent.zone_client import Client, Closed, Stream
from tests.support.agent.zone_specs import creation
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root

BAD = [g for g in json.loads(PATH.read_text()) if g["direction"] == "host" and g["error"] is not None]


def raw(kind: int, stream: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack("<BBHII", kind, flags, 0, stream, len(payload)) + payload


def closes(client: Client) -> None:
    """The agent ends the connection; earlier frames may still come."""
    with pytest.raises((Closed, BrokenPipeError)):
        while True:
            client.step()


def alive(zone: Zone, name: str = "c1") -> None:
    """The next connection works and the container has gone on."""
    client = zone.connect()
    (process,) = client.call(list_processes=pb.ListProcesses()).processes.processes
    assert process.process.container_id == name and process.state == pb.PROCESS_STATE_RUNNING
    client.close()


def test_every_malformed_frame_closes_its_connection_alone(zone: Zone, client: Client) -> None:
    client.start("c1", "sleep", "100")
    for golden in BAD:
        hostile = zone.connect()
        hostile.socket.sendall(bytes.fromhex(golden["hex"]))
        try:
            closes(hostile)
        except TimeoutError:
            pytest.fail(f"{golden['name']} did not close the connection")
        hostile.close()
    alive(zone)


OPEN_BREAKS: list[tuple[str, Callable[[pb.ProcessCreated], bytes]]] = [
    ("a second HELLO", lambda c: raw(Type.HELLO, 0)),
    ("a CALL that is no Request", lambda c: raw(Type.CALL, 1, b"\xff\xff\xff")),
    ("DATA for an output", lambda c: raw(Type.DATA, c.stdout_stream, struct.pack("<Q", 0) + b"x")),
    ("DATA at another offset", lambda c: raw(Type.DATA, c.stdin_stream, struct.pack("<Q", 1) + b"x")),
    ("DATA for an unused number", lambda c: raw(Type.DATA, 4_000_000, struct.pack("<Q", 0) + b"x")),
    (
        "DATA after FIN",
        lambda c: (
            raw(Type.DATA, c.stdin_stream, struct.pack("<Q", 0), 1)
            + raw(Type.DATA, c.stdin_stream, struct.pack("<Q", 0) + b"x")
        ),
    ),
    ("CREDIT for an input", lambda c: raw(Type.CREDIT, c.stdin_stream, struct.pack("<QQ", 0, 9))),
    ("CREDIT for an unused number", lambda c: raw(Type.CREDIT, 4_000_000, struct.pack("<QQ", 0, 9))),
    ("CREDIT for what was not sent", lambda c: raw(Type.CREDIT, c.stdout_stream, struct.pack("<QQ", 50, 99))),
    ("CREDIT that takes back", lambda c: raw(Type.CREDIT, c.stdout_stream, struct.pack("<QQ", 0, 9))),
    (
        "DATA beyond the credit",
        lambda c: b"".join(
            raw(Type.DATA, c.stdin_stream, struct.pack("<Q", at) + bytes(32768))
            for at in range(0, 1 << 20, 32768)
        ),
    ),
    (
        "a call id that is open",
        lambda c: (
            raw(
                Type.CALL,
                9,
                pb.Request(create_container=creation("w", "true", disk="xvdx")).SerializeToString(),
            )
            + raw(Type.CALL, 9, pb.Request(get_facts=pb.GetFacts()).SerializeToString())
        ),
    ),
    (
        "too many calls",
        lambda c: b"".join(
            raw(Type.CALL, n, pb.Request(configure_network=pb.ConfigureNetwork(index=9)).SerializeToString())
            for n in range(1, 66)
        ),
    ),
]


@pytest.mark.parametrize("why,frame", OPEN_BREAKS, ids=[why for why, _ in OPEN_BREAKS])
def test_a_broken_rule_ends_the_connection(
    zone: Zone, why: str, frame: Callable[[pb.ProcessCreated], bytes]
) -> None:
    client = zone.connect()
    # A process without reads: its stdin is never consumed beyond the pipe.
    created = client.start("c1", "sleep", "100", stdin=True)
    with pytest.raises((Closed, BrokenPipeError, ConnectionResetError)):
        client.socket.sendall(frame(created))
        while True:
            client.step()
    again = zone.connect()
    listed = again.begin(list_processes=pb.ListProcesses())
    # Creations of the broken connection wait for their disk; the list waits for the creations.
    if why == "a call id that is open":
        again.call(delete_container=pb.DeleteContainer(id="w"))
    processes = again.finish(listed).processes.processes
    assert [p.process.container_id for p in processes] == ["c1"]
    assert processes[0].state == pb.PROCESS_STATE_RUNNING


def ten_digits(client: Client) -> int:
    """The number of an output with 11 sent bytes, none consumed."""
    request = creation("c1", "sh", "-c", "echo 0123456789; sleep 100")
    number = client.call(create_container=request).created.stdout_stream
    stream = client.streams.setdefault(number, Stream(number, take=False))
    client.call(start_container=pb.StartContainer(id="c1"))
    client.until(lambda: len(stream.data) == 11, "output")
    return number


def test_credit_does_not_go_back(zone: Zone, client: Client) -> None:
    """Consumed bytes are not kept any more."""
    number = ten_digits(client)
    client.send(frames.credit(number, 8, frames.WINDOW + 4))
    client.call(get_facts=pb.GetFacts())
    client.send(frames.credit(number, 4, frames.WINDOW + 4))
    closes(client)
    alive(zone)


def test_credit_beyond_the_connections_bytes_is_a_violation(zone: Zone, client: Client) -> None:
    number = ten_digits(client)
    client.close()
    again = zone.connect()
    again.streams[number] = Stream(number, take=False)
    again.send(frames.credit(number, 0, 3))
    again.until(lambda: len(again.streams[number].data) == 3, "as much as allowed")
    again.send(frames.credit(number, 5, 9))
    closes(again)
    alive(zone)


def test_the_first_frame_must_be_hello(zone: Zone) -> None:
    for frame in (raw(Type.CALL, 1), raw(Type.HELLO, 0, b"\xff")):
        client = Client(zone.channel, hello=False)
        client.socket.sendall(frame)
        closes(client)


def test_without_a_common_version_the_connection_ends(zone: Zone) -> None:
    client = Client(zone.channel, hello=False)
    hello = client.greet(2, 9)
    assert (hello.version_min, hello.version_max) == (0, 0)
    closes(client)
    assert zone.connect().hello.version_max == 1  # type: ignore[union-attr]


def test_a_newer_host_uses_the_agents_version(zone: Zone) -> None:
    client = Client(zone.channel, hello=False)
    assert client.greet(1, 9).version_max == 1
    client.call(get_facts=pb.GetFacts())


def test_an_unknown_call_is_unimplemented(client: Client) -> None:
    client.call_id += 1
    client.socket.sendall(raw(Type.CALL, client.call_id, b"\xfa\x3e\x00"))
    client.until(lambda: client.call_id in client.replies)
    assert client.replies[client.call_id].error.code == 12


def test_single_bytes_are_read(zone: Zone) -> None:
    client = Client(zone.channel, hello=False)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    hello = pb.Hello(version_min=1, version_max=1).SerializeToString()
    call = pb.Request(get_facts=pb.GetFacts()).SerializeToString()
    for byte in raw(Type.HELLO, 0, hello) + raw(Type.CALL, 77, call):
        client.socket.sendall(bytes([byte]))
    assert client.next_frame().type is Type.HELLO
    client.until(lambda: 77 in client.replies)


def test_a_new_connection_replaces_the_old(zone: Zone, client: Client) -> None:
    second = zone.connect()
    assert second.hello is not None and client.hello is not None
    assert second.hello.boot_id == client.hello.boot_id
    closes(client)
    second.call(get_facts=pb.GetFacts())


def test_random_bytes_end_the_connection_only(zone: Zone, client: Client) -> None:
    client.start("c1", "sleep", "100")
    source = random.Random(7)
    for _ in range(150):
        hostile = Client(zone.channel, hello=source.random() < 0.7)
        kind = source.choice([1, 2, 5, 6])
        payload = source.randbytes(source.randrange(60))
        try:
            hostile.socket.sendall(raw(kind, source.choice([0, 1, 2, 3]), payload))
            hostile.socket.sendall(source.randbytes(source.randrange(200)))
        except (BrokenPipeError, ConnectionResetError):
            pass
        hostile.close()
    alive(zone)


def test_sixty_four_calls_wait_at_once(client: Client) -> None:
    client.call(configure_zone=pb.ConfigureZone(hostname="x"))
    body = pb.Request(get_facts=pb.GetFacts()).SerializeToString()
    client.socket.sendall(b"".join(raw(Type.CALL, 1000 + n, body) for n in range(64)))
    client.until(lambda: all(1000 + n in client.replies for n in range(64)))


def test_hello_frames_have_limits() -> None:
    """raw() of this file and the codec agree: the tests are about the agent."""
    assert raw(Type.CALL, 5, b"abc") == frames.encode(Frame(Type.CALL, 5, b"abc"))
