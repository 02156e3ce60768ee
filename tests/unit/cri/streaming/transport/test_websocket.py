"""WebSocket connections of the streaming server: pieces, garbage, tunnels, port-forward channels."""

from __future__ import annotations

import asyncio
import os
import random
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
from wsproto.events import BytesMessage, TextMessage

from cri.streaming.spdy.encode import SpdyEncoder
from cri.streaming.spdy.frames import Data, SynStream
from cri.streaming.transport.channels import PROTOCOLS, TEXT_LIMIT_BYTES, WebSocketChannels
from cri.streaming.transport.quota import LIMIT_BYTES, BufferQuota
from cri.streaming.transport.websocket import MessagePart, WebSocket
from cri.streaming.transport.wire import ClientGone
from tests.support.cri.stream_client import WEBSOCKET, Spdy, Ws, connect, key, path_of, websocket
from tests.support.cri.stream_jobs import Echo, Play, echo, forever, forwarding, streaming_server

CLOSE_PROTOCOL_ERROR = 1002


def frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, masked: bool = True, length: int = -1
) -> bytes:
    """A client's frame (RFC 6455, section 5.2), valid or not."""
    size = len(payload) if length < 0 else length
    first, mask_bit = (0x80 if fin else 0) | opcode, 0x80 if masked else 0
    if size > 65535:
        head = bytes((first, mask_bit | 127)) + struct.pack(">Q", size)
    elif size > 125:
        head = bytes((first, mask_bit | 126)) + struct.pack(">H", size)
    else:
        head = bytes((first, mask_bit | size))
    if not masked:
        return head + payload
    mask = os.urandom(4)
    return head + mask + bytes(byte ^ mask[n % 4] for n, byte in enumerate(payload))


async def test_a_fragmented_message_belongs_to_a_single_channel() -> None:
    async with streaming_server() as streaming:
        client = await websocket(streaming.base, streaming.url(Play().job(echo)))
        await client.event(BytesMessage(b"", message_finished=False))
        await client.event(BytesMessage(b"\0", message_finished=False))
        for _ in range(50):
            await client.event(BytesMessage(b"hello", message_finished=False))
        await client.event(BytesMessage(b"", message_finished=True))
        await client.send(b"\xff\0")
        await client.until(lambda: client.closed)
        assert client.channel(1) == b"hello" * 50


async def test_a_long_message_is_handed_on_before_its_end() -> None:
    """A message of 4 GiB is announced: its beginning arrives, and nothing is kept for the rest."""
    async with streaming_server() as streaming:
        client = await websocket(streaming.base, streaming.url(Play().job(echo)))
        await client.line.send(frame(2, b"\0begin", length=4 << 30))
        await client.until(lambda: client.channel(1) == b"begin")
        client.line.abort()


@pytest.mark.parametrize(
    "garbage",
    [
        frame(2, b"\0x", masked=False),
        frame(3, b"\0x"),
        frame(9, b"x" * 126),
        frame(9, b"x", fin=False),
        frame(0, b"x"),
        frame(2, b"\0x", fin=False) + frame(2, b"\0x"),
        bytes((0xC2, 0x81)) + b"mask" + b"x",
        frame(1, b"\xff\xfe\xfd"),
        frame(2, b"", length=1 << 63),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x80\x03\0\x01\0\0\0\x10",
    ],
    ids=[
        "unmasked", "opcode 3", "long ping", "ping in fragments", "continuation of nothing",
        "message in message",
        "reserved bit", "text that is none", "63 bits of length", "http", "spdy",
    ],
)  # fmt: skip
async def test_frames_against_a_rule_are_an_error(garbage: bytes) -> None:
    async with streaming_server() as streaming:
        play = Play()
        client = await websocket(streaming.base, streaming.url(play.job(forever)))
        await play.until(lambda: play.begun == 1)
        await client.line.send(garbage)
        await client.until(lambda: client.closed)
        assert client.closed in (CLOSE_PROTOCOL_ERROR, 1007)
        await play.until(lambda: play.cancelled == 1)


class Script:
    """A wire that plays bytes and keeps the answers."""

    def __init__(self, data: bytes, step: int) -> None:
        self._pieces = [data[at : at + step] for at in range(0, len(data), step)]
        self.sent = 0
        self.quota = BufferQuota()

    async def receive(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""

    async def send(self, data: bytes) -> None:
        self.sent += len(data)

    async def hung_up(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("seed", range(300))
async def test_mangled_frames_cause_bounded_work_or_client_gone(seed: int) -> None:
    """Valid frames with flipped bytes, and plain noise: pieces, an end, or ClientGone; nothing else."""
    noise = random.Random(seed)
    data = bytearray(noise.randbytes(noise.randrange(200)))
    if seed % 3:
        data = bytearray()
        for _ in range(noise.randrange(1, 8)):
            kind = noise.choice((0, 1, 2, 2, 2, 8, 9, 10))
            data += frame(kind, noise.randbytes(noise.randrange(120)), fin=noise.random() < 0.8)
        for _ in range(noise.randrange(3)):
            data[noise.randrange(len(data))] ^= 1 << noise.randrange(8)
    wire = Script(bytes(data), noise.randrange(1, 50))
    size = 0
    try:
        async for parts in WebSocket(wire).parts():
            size += sum(len(part.data) for part in parts)
    except ClientGone:
        pass
    assert size <= 4 * len(data)
    assert wire.sent <= 2 * len(data) + 200


async def test_nothing_is_sent_after_the_goodbye() -> None:
    wire = Script(b"", 1)
    socket = WebSocket(wire)
    await socket.goodbye()
    sent = wire.sent
    with pytest.raises(ClientGone):
        await socket.send(b"x")
    await socket.goodbye()
    assert wire.sent == sent > 0


class Flood:
    """A client that sent without end, and hung up."""

    def __init__(self) -> None:
        self.read = 0
        self.quota = BufferQuota()

    async def parts(self) -> AsyncIterator[list[MessagePart]]:
        while True:
            self.read += 1
            yield [MessagePart(b"\0" + b"x" * LIMIT_BYTES, last=True)]

    async def hung_up(self) -> None:
        """Return at once."""


async def test_nothing_is_read_from_a_client_after_its_hang_up() -> None:
    flood: Any = Flood()
    channels = WebSocketChannels(flood, PROTOCOLS["v5.channel.k8s.io"], frozenset({0}))
    async with asyncio.timeout(60):
        with pytest.raises(ClientGone, match="hung up"):
            await channels.run()
    assert flood.read == 1


class Messages:
    """A client that sends some parts of messages, and closes."""

    def __init__(self, *parts: MessagePart) -> None:
        self._parts = parts
        self.quota = BufferQuota()

    async def parts(self) -> AsyncIterator[list[MessagePart]]:
        for part in self._parts:
            yield [part]


BAD_MESSAGES = [
    (
        "base64.channel.k8s.io",
        [MessagePart(b"0" + b"A" * TEXT_LIMIT_BYTES, last=False)],
        "a message of more than",
    ),
    ("base64.channel.k8s.io", [MessagePart(b"0?", last=True)], "not base64"),
    ("v5.channel.k8s.io", [MessagePart(b"\xff", last=False)] + [MessagePart(b"x" * 65536, False)] * 4,
     "a message of more than"),
    ("v5.channel.k8s.io", [MessagePart(b"\xff", last=True)], "without its number"),
    ("v5.channel.k8s.io", [MessagePart(b"\xff\0\0", last=True)], "without its number"),
]  # fmt: skip


@pytest.mark.parametrize(("protocol", "parts", "words"), BAD_MESSAGES)
async def test_messages_against_a_rule_end_the_connection(
    protocol: str, parts: list[MessagePart], words: str
) -> None:
    socket: Any = Messages(*parts)
    channels = WebSocketChannels(socket, PROTOCOLS[protocol], frozenset({0}))
    with pytest.raises(ClientGone, match=words):
        await channels.run()
    assert await channels.inboxes[0].read() == b""


async def port_streams(client: Spdy, number: int, port: str = "80") -> tuple[int, int]:
    """The error and the data stream of a connection."""
    error = await client.open(streamtype="error", port=port, requestid=str(number))
    return error, await client.open(streamtype="data", port=port, requestid=str(number))


@pytest.mark.parametrize("protocol", ["SPDY/3.1+portforward.k8s.io", "v2.portforward.k8s.io"])
async def test_spdy_works_in_a_tunnel(protocol: str) -> None:
    """As in client-go's port-forward over WebSocket."""
    async with streaming_server() as streaming:
        echoes = Echo()
        tunnel = await websocket(streaming.base, streaming.url(forwarding(echoes)), protocol)
        encoder = SpdyEncoder()
        head = {"port": ("80",), "requestid": ("0",)}
        wire = b"".join(
            encoder.encode(each)
            for each in (
                SynStream(1, {"streamtype": ("error",), **head}, fin=True),
                SynStream(3, {"streamtype": ("data",), **head}),
                Data(3, b"hello " * 1000),
                Data(3, b"", fin=True),
            )
        )
        for at in range(0, len(wire), 77):  # frames need not respect messages
            await tunnel.send(wire[at : at + 77])
        client = Spdy(tunnel.line)
        client.output = {1: bytearray(), 3: bytearray()}
        await _until_ended(tunnel, client, {1, 3})
        assert bytes(client.output[3]) == b"HELLO " * 1000
        assert bytes(client.output[1]) == b""


async def _until_ended(tunnel: Ws, client: Spdy, numbers: set[int]) -> None:
    ended: set[int] = set()
    while not ended >= numbers:
        await tunnel.until(lambda: tunnel.messages)
        data = b"".join(message for message in tunnel.messages if isinstance(message, bytes))
        tunnel.messages.clear()
        for each in client.decoder.feed(data):
            if isinstance(each, Data):
                client.output[each.stream] += each.data
                ended |= {each.stream} if each.fin else set()


async def test_text_ends_a_tunnel() -> None:
    async with streaming_server() as streaming:
        client = await websocket(
            streaming.base, streaming.url(forwarding(Echo())), "SPDY/3.1+portforward.k8s.io"
        )
        await client.event(TextMessage("hello"))
        with pytest.raises((EOFError, ConnectionError)):
            await client.until(lambda: False)


async def test_port_forward_channels_need_ports() -> None:
    async with streaming_server() as streaming:
        line = await connect(streaming.base)
        answer = await line.ask(path_of(streaming.url(forwarding(Echo()))), *WEBSOCKET, key())
        assert answer.status == 400
        assert b"needs the ports" in answer.body


async def test_port_forward_channels_carry_data_and_errors() -> None:
    async with streaming_server() as streaming:
        job = forwarding(Echo(refuses={81}), ports=(80, 81))
        client = await websocket(streaming.base, streaming.url(job), "v4.channel.k8s.io")
        await client.until(lambda: len(client.channel(3)) > 2)
        assert client.messages[:4] == [b"\0\x50\0", b"\1\x50\0", b"\2\x51\0", b"\3\x51\0"]
        assert b"error forwarding port 81" in client.channel(3)
        await client.send(b"\0hello")
        await client.until(lambda: client.channel(0) == b"\x50\0HELLO")
        client.line.abort()
