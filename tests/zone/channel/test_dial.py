"""Dial: TCP connections to the zone's loopback, with the real agent and servers of the test's own."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import time
from contextlib import suppress

import pytest

from protect.channel import frames
from tests.support.agent.zone import Zone
from tests.support.agent.zone_client import DEADLINE, Client, Failed, Stream
from tests.support.agent.zone_listener import listen
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root

INVALID, EXHAUSTED, REFUSED = 3, 8, 9
MOST = 128
NOTHING = (0, 0, False)


def accept(listener: socket.socket) -> socket.socket:
    accepted, _ = listener.accept()
    accepted.settimeout(DEADLINE)
    return accepted


def dial(client: Client, port: int) -> pb.Dialed:
    return client.call(dial=pb.Dial(port=port)).dialed


def listed(client: Client) -> list[tuple[int, int]]:
    reply = client.call(list_processes=pb.ListProcesses())
    return [(one.in_stream, one.out_stream) for one in reply.processes.connections]


def gone(client: Client) -> None:
    """Waits until the agent has forgotten every connection."""
    deadline = time.monotonic() + DEADLINE
    while listed(client):  # each look is a round trip to the agent
        assert time.monotonic() < deadline, "connections are left"


def received(server: socket.socket) -> bytes:
    """Everything until the end."""
    data = bytearray()
    while piece := server.recv(1 << 16):
        data += piece
    return bytes(data)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "0.0.0.0"])
def test_dialed_connection_carries_both_directions_and_both_ends(
    zone: Zone, client: Client, address: str
) -> None:
    with listen(zone.pid, 8080, address) as listener:
        dialed = dial(client, 8080)
        with accept(listener) as server:
            assert listed(client) == [(dialed.in_stream, dialed.out_stream)]
            content = os.urandom(300_000)
            client.write(dialed.in_stream, b"ping", fin=True)
            assert received(server) == b"ping", "the end of input came, too"
            server.setblocking(False)
            client.streams.setdefault(dialed.out_stream, Stream(dialed.out_stream))
            sent = 0
            while sent < len(content):
                try:
                    sent += server.send(content[sent:])
                except BlockingIOError:
                    client.step()
            server.shutdown(socket.SHUT_WR)
            output = client.output(dialed.out_stream)
            assert hashlib.sha256(output).digest() == hashlib.sha256(content).digest()
            gone(client)


def test_the_server_ends_first(zone: Zone, client: Client) -> None:
    with listen(zone.pid, 8080) as listener:
        dialed = dial(client, 8080)
        with accept(listener) as server:
            server.sendall(b"bye")
            server.shutdown(socket.SHUT_WR)
            assert client.output(dialed.out_stream) == b"bye"
            assert listed(client) == [(dialed.in_stream, dialed.out_stream)], "it may still be written to"
            client.write(dialed.in_stream, b"thanks", fin=True)
            assert received(server) == b"thanks"
            gone(client)


def test_dial_of_a_closed_port_is_refused(zone: Zone, client: Client) -> None:
    with pytest.raises(Failed, match="connection refused") as failed:
        dial(client, 81)
    assert failed.value.code == REFUSED
    assert listed(client) == []


@pytest.mark.parametrize("port", [0, 65536, 2**32 - 1])
def test_invalid_port_is_refused(zone: Zone, client: Client, port: int) -> None:
    with pytest.raises(Failed, match="not a port") as failed:
        dial(client, port)
    assert failed.value.code == INVALID


def test_giving_up_the_output_closes_the_connection(zone: Zone, client: Client) -> None:
    with listen(zone.pid, 8080) as listener:
        dialed = dial(client, 8080)
        with accept(listener) as server:
            client.send(frames.credit(dialed.out_stream, 0, 0, fin=True))
            assert received(server) == b""
            gone(client)


def test_a_reset_ends_both_streams(zone: Zone, client: Client) -> None:
    """Many times: the reader of the connection's error is a matter of moments."""
    with listen(zone.pid, 8080) as listener:
        for _ in range(300):
            dialed = dial(client, 8080)
            server = accept(listener)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            server.close()
            assert client.output(dialed.out_stream) == b""
            number = dialed.in_stream
            client.until(lambda number=number: client.credits.get(number, NOTHING)[2], "end of input")  # type: ignore[misc]
        gone(client)


def test_a_server_without_reads_delays_only_its_own_stream(zone: Zone, client: Client) -> None:
    with listen(zone.pid, 8080) as listener:
        slow, quick = dial(client, 8080), dial(client, 8080)
        with accept(listener) as deaf, accept(listener) as server:
            blob = b"x" * 32_768
            client.credits[slow.in_stream] = (0, frames.WINDOW, False)
            sent = 0
            for _ in range(1000):
                if client.credits[slow.in_stream][1] - sent < len(blob):
                    break
                client.send(frames.data(slow.in_stream, sent, blob))
                sent += len(blob)
                listed(client)  # a round trip: outstanding credit has arrived
            else:
                pytest.fail("credit without end")
            client.write(quick.in_stream, b"hello", fin=True)
            assert received(server) == b"hello"
            deaf.close()
            client.until(lambda: client.credits[slow.in_stream][2], "the end of the deaf one")


def test_dials_beyond_the_limit_are_refused(zone: Zone, client: Client) -> None:
    with listen(zone.pid, 8080) as listener:
        dialed = [dial(client, 8080) for _ in range(MOST)]
        accepted = [accept(listener) for _ in range(MOST)]
        with pytest.raises(Failed) as failed:
            dial(client, 8080)
        assert failed.value.code == EXHAUSTED
        assert len(listed(client)) == MOST
        numbers = {number for one in dialed for number in (one.in_stream, one.out_stream)}
        assert len(numbers) == 2 * MOST
        for server in accepted:
            server.close()
        for one in dialed:
            assert client.output(one.out_stream) == b""
            client.write(one.in_stream, b"", fin=True)
        gone(client)
        assert dial(client, 8080).in_stream not in numbers
        listener.accept()[0].close()


def test_a_connection_outlives_the_channels(zone: Zone, client: Client) -> None:
    with listen(zone.pid, 8080) as listener:
        dialed = dial(client, 8080)
        with accept(listener) as server:
            client.close()
            server.sendall(b"meanwhile")
            again = zone.connect()
            assert listed(again) == [(dialed.in_stream, dialed.out_stream)]
            again.send(frames.credit(dialed.out_stream, 0, frames.WINDOW))
            server.shutdown(socket.SHUT_WR)
            assert again.output(dialed.out_stream) == b"meanwhile"
            again.write(dialed.in_stream, b"back", fin=True)
            assert received(server) == b"back"
            gone(again)
            again.close()


def test_an_unanswered_dial_ends_with_its_channel(zone: Zone, client: Client) -> None:
    """With a full backlog the kernel lets the connect wait; nobody would know of the streams later."""
    with listen(zone.pid, 8080, backlog=1) as listener:
        calls = [client.begin(dial=pb.Dial(port=8080)) for _ in range(6)]
        client.until(lambda: len(client.replies) >= 2, "those that fit")
        known = {client.finish(call).dialed.in_stream for call in calls if call in client.replies}
        client.close()
        again = zone.connect()
        assert {into for into, _ in listed(again)} == known
        # Waiting connections arrive at the kernel's next try, unless the agent has given up on them.
        listener.settimeout(15)
        with suppress(TimeoutError):
            for _ in range(6):
                listener.accept()[0].close()
        assert {into for into, _ in listed(again)} == known
        again.close()


def test_a_zone_with_open_connections_powers_off(zone: Zone, client: Client) -> None:
    with listen(zone.pid, 8080) as listener:
        dial(client, 8080)
        with accept(listener):
            client.call(power_off=pb.PowerOff())
            assert zone.wait_status() == "poweroff"
            assert "memory was lost" not in zone.console()
