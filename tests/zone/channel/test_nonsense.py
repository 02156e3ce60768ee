"""Requests made of nonsense, whole and broken: the agent answers or closes, and goes on."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from protect.channel.frames import Type
from tests.support.agent.zone import Zone
from tests.support.agent.zone_client import Client, Closed
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root

VERBS = [field for field in pb.Request.DESCRIPTOR.fields if field.name != "power_off"]
WORDS = [
    "",
    "c1",
    "e1",
    "xvda",
    "xvdq",
    "squashfs",
    "eth0",
    "lo",
    "10.0.0.1/8",
    "::/0",
    "..",
    "/",
    "%s%n",
    "ä" * 40,
]


def _value(field: FieldDescriptor, source: random.Random) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return source.choice([*WORDS, "a" * source.randrange(400)])
    if field.type == FieldDescriptor.TYPE_BYTES:
        return source.choice([b"", b"{}", b"[]", source.randbytes(source.randrange(300))])
    if field.type == FieldDescriptor.TYPE_BOOL:
        return source.random() < 0.5
    if field.type == FieldDescriptor.TYPE_ENUM:
        return source.choice([0, 1, 9, -1, -(2**31), 2**31 - 1])
    return source.choice([0, 1, 9, 15, 64, 65, 1500, 2**31, 2**32 - 1])


def _fill(message: Any, descriptor: Descriptor, source: random.Random) -> None:
    for field in descriptor.fields:
        target = getattr(message, field.name)
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            target[source.choice(WORDS)] = source.choice(WORDS)
        elif field.is_repeated:
            for _ in range(source.choice([0, 1, 2, 40, 70])):
                if entry is not None:
                    _fill(target.add(), entry, source)
                else:
                    target.append(_value(field, source))
        elif entry is not None:
            if source.random() < 0.9:
                _fill(target, entry, source)
        elif source.random() < 0.9:
            setattr(message, field.name, _value(field, source))


def _request(source: random.Random) -> pb.Request:
    request = pb.Request()
    verb = source.choice(VERBS)
    assert verb.message_type is not None
    getattr(request, verb.name).SetInParent()
    _fill(getattr(request, verb.name), verb.message_type, source)
    if verb.name == "configure_network":
        # An unknown name: the zone still needs its loopback.
        request.configure_network.name = source.choice(["", "eth7", "/"])
    return request


@pytest.mark.parametrize("seed", range(3))
def test_nonsense_requests_leave_the_agent_alive(zone: Zone, client: Client, seed: int) -> None:
    source = random.Random(seed)
    client.start("c1", "sleep", "1000")
    for _ in range(150):
        request = _request(source)
        if len(request.SerializeToString()) > 1 << 20:
            continue
        client.call_id += 1
        client.socket.sendall(_frame(client.call_id, request.SerializeToString()))
        if client.call_id % 32 == 0:
            client.call(get_facts=pb.GetFacts())
            client.close()
            client = zone.connect()
    client.close()
    assert zone.connect().call(get_facts=pb.GetFacts()).facts.pid1 == "init"


def _frame(call: int, payload: bytes) -> bytes:
    return struct.pack("<BBHII", Type.CALL, 0, 0, call, len(payload)) + payload


def _powers_off(payload: bytes) -> bool:
    try:
        return pb.Request.FromString(payload).HasField("power_off")
    except DecodeError:
        return False


@pytest.mark.parametrize("seed", range(2))
def test_broken_requests_leave_the_agent_alive(zone: Zone, seed: int) -> None:
    """Bytes of a request changed or cut: an answer, or the end of the connection."""
    source = random.Random(seed)
    for _ in range(200):
        payload = bytearray(_request(source).SerializeToString()[:4000])
        for _ in range(source.randrange(1, 5)):
            if payload:
                payload[source.randrange(len(payload))] = source.randrange(256)
        del payload[len(payload) - source.randrange(3) :]
        # The nonsense may be an order to power off.
        if _powers_off(bytes(payload)):
            continue
        client = zone.connect()
        try:
            client.socket.sendall(_frame(1, bytes(payload)))
            client.socket.sendall(_frame(2, pb.Request(get_facts=pb.GetFacts()).SerializeToString()))
            client.until(lambda client=client: 2 in client.replies)  # type: ignore[misc]
        except (Closed, BrokenPipeError, ConnectionResetError):
            pass
        client.close()
    assert zone.connect().call(get_facts=pb.GetFacts()).facts.pid1 == "init"
