"""The client's side of streams, for tests: SPDY and WebSocket over a socket."""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
from dataclasses import dataclass, field

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, TextMessage

from cri.streaming.spdy.decode import SpdyDecoder
from cri.streaming.spdy.encode import SpdyEncoder
from cri.streaming.spdy.frames import Data, Frame, Reset, SynReply, SynStream

PATIENCE = 60.0
"""Seconds for anything to come; software emulation is slow."""


@dataclass
class Answer:
    """To an HTTP request."""

    status: int
    headers: dict[str, str]
    body: bytes = b""


@dataclass
class Line:
    """A TCP connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, path: str, *headers: tuple[str, str], method: str = "GET") -> Answer:
        """A request, and the head of its answer; the body unless the protocol is switched."""
        lines = [f"{method} {path} HTTP/1.1", "Host: test"]
        lines += [f"{name}: {value}" for name, value in headers]
        await self.send("\r\n".join([*lines, "", ""]).encode())
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        found = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        status = int(head[0].split()[1])
        return Answer(status, found, b"" if status == 101 else await self.reader.read())

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def close(self) -> None:
        self.writer.close()

    def abort(self) -> None:
        """Abort the connection by RST."""
        self.writer.transport.abort()


async def connect(base: str, tls: ssl.SSLContext | None = None) -> Line:
    """To a server's ``base``, ``http://host:port``."""
    host, _, port = base.rpartition("/")[2].rpartition(":")
    return Line(*await asyncio.open_connection(host.strip("[]"), int(port), ssl=tls, limit=1 << 20))


def path_of(url: str) -> str:
    return "/" + url.split("/", 3)[3]


@dataclass
class Spdy:
    """A SPDY client."""

    line: Line
    encoder: SpdyEncoder = field(default_factory=SpdyEncoder)
    decoder: SpdyDecoder = field(default_factory=SpdyDecoder)
    streams: dict[str, int] = field(default_factory=dict)
    output: dict[int, bytearray] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    refused: dict[int, int] = field(default_factory=dict)
    replied: set[int] = field(default_factory=set)
    others: list[Frame] = field(default_factory=list)
    last: int = -1

    async def send(self, *frames: Frame) -> None:
        await self.line.send(b"".join(self.encoder.encode(frame) for frame in frames))

    async def open(self, **headers: str) -> int:
        """A new stream; waits for its reply or reset."""
        self.last += 2
        number = self.last
        self.output[number] = bytearray()
        await self.send(SynStream(number, {name: (value,) for name, value in headers.items()}))
        await self.until(lambda: number in self.replied or number in self.refused)
        return number

    async def open_all(self, *kinds: str) -> None:
        for kind in kinds:
            self.streams[kind] = await self.open(streamtype=kind)

    async def write(self, kind: str, data: bytes, *, fin: bool = False) -> None:
        await self.send(Data(self.streams[kind], data, fin))

    def text(self, kind: str) -> bytes:
        return bytes(self.output[self.streams[kind]])

    async def until(self, condition: object) -> None:
        """Read until ``condition()`` holds; EOFError when the server closes first."""
        assert callable(condition)
        async with asyncio.timeout(PATIENCE):
            while not condition():
                if not await self.step():
                    raise EOFError

    async def finished(self, *kinds: str) -> None:
        await self.until(lambda: all(self.streams[kind] in self.ended for kind in kinds))

    async def step(self) -> bool:
        """Read once; False at the end."""
        data = await self.line.reader.read(1 << 18)
        for frame in self.decoder.feed(data):
            match frame:
                case Data(number, content, fin):
                    self.output[number] += content
                    if fin:
                        self.ended.add(number)
                case Reset(number, status):
                    self.refused[number] = status
                case SynReply(number):
                    self.replied.add(number)
                case _:
                    self.others.append(frame)
        return bool(data)


async def spdy(
    base: str,
    url: str,
    protocol: str = "v4.channel.k8s.io",
    *more: tuple[str, str],
    tls: ssl.SSLContext | None = None,
) -> Spdy:
    """Upgraded; ``more`` headers are sent, too."""
    line = await connect(base, tls)
    headers = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1"), *more]
    if protocol:
        headers.append(("X-Stream-Protocol-Version", protocol))
    answer = await line.ask(path_of(url), *headers, ("Content-Length", "0"), method="POST")
    assert answer.status == 101, answer
    assert answer.headers.get("x-stream-protocol-version", "") == protocol
    return Spdy(line)


WEBSOCKET = [("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13")]


def key() -> tuple[str, str]:
    return ("Sec-WebSocket-Key", base64.b64encode(os.urandom(16)).decode())


@dataclass
class Ws:
    """A WebSocket client: whole messages."""

    line: Line
    protocol: Connection = field(default_factory=lambda: Connection(ConnectionType.CLIENT))
    messages: list[bytes | str] = field(default_factory=list)
    closed: int = 0
    _part: bytes = b""
    _text: str = ""

    async def send(self, data: bytes | str) -> None:
        await self.event(BytesMessage(data) if isinstance(data, bytes) else TextMessage(data))

    async def event(self, event: Event) -> None:
        await self.line.send(self.protocol.send(event))

    def channel(self, number: int) -> bytes:
        """All output on a binary channel."""
        return b"".join(m[1:] for m in self.messages if isinstance(m, bytes) and m[:1] == bytes((number,)))

    async def until(self, condition: object) -> None:
        assert callable(condition)
        async with asyncio.timeout(PATIENCE):
            while not condition():
                if not await self.step():
                    raise EOFError

    async def step(self) -> bool:
        data = await self.line.reader.read(1 << 18)
        if data and self.protocol.state in (ConnectionState.OPEN, ConnectionState.LOCAL_CLOSING):
            self.protocol.receive_data(data)
            for event in self.protocol.events():
                await self._take(event)
        return bool(data)

    async def _take(self, event: Event) -> None:
        match event:
            case BytesMessage():
                self._part += event.data
                if event.message_finished:
                    self.messages.append(self._part)
                    self._part = b""
            case TextMessage():
                self._text += event.data
                if event.message_finished:
                    self.messages.append(self._text)
                    self._text = ""
            case CloseConnection():
                self.closed = event.code
                if self.protocol.state is ConnectionState.REMOTE_CLOSING:
                    await self.event(event.response())


async def websocket(
    base: str,
    url: str,
    protocol: str = "v5.channel.k8s.io",
    *more: tuple[str, str],
    tls: ssl.SSLContext | None = None,
) -> Ws:
    """Upgraded; ``more`` headers are sent, too."""
    line = await connect(base, tls)
    headers = [*WEBSOCKET, key(), *more]
    if protocol:
        headers.append(("Sec-WebSocket-Protocol", protocol))
    answer = await line.ask(path_of(url), *headers)
    assert answer.status == 101, answer
    assert answer.headers.get("sec-websocket-protocol", "") == protocol
    return Ws(line)
