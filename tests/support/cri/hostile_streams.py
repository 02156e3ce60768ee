"""Clients of exec and port-forward that send small frames without end: much work for few bytes."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from cri.streaming.spdy.encode import SpdyEncoder
from cri.streaming.spdy.frames import FrameType, Ping, SynStream
from cri.streaming.spdy.headers import dictionary
from tests.support.cri.stream_client import WEBSOCKET, Line, connect, key, path_of
from tools.localnode.cri_client import Client
from xenpod_proto.cri.v1 import runtime_pb2 as pb

PORT = 80
_FRAMES = 20_000
"""Frames of one write."""
_MINUTE = 60.0
_CONTROL = struct.Struct(">HHI")
_SYN = struct.Struct(">I")
_MASKED = b"\x80\0\0\0\0"
"""The rest of the head of an empty frame from a client, with a mask of zeros."""
_SPDY = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")]


@dataclass(frozen=True, slots=True)
class Flood:
    """``begin`` is sent once, then ``again`` without end.

    ``command``: of the exec for the stream; none: a port-forward.
    """

    again: bytes
    begin: bytes = b""
    websocket: bool = False
    command: tuple[str, ...] = ()
    tty: bool = False


def control(kind: int, body: bytes) -> bytes:
    """A control frame of SPDY."""
    return _CONTROL.pack(0x8003, kind, len(body)) + body


def opened(*kinds: str) -> bytes:
    """The streams of an exec, from number 1 on."""
    encoder = SpdyEncoder()
    frames = [SynStream(2 * n + 1, {"streamtype": (kind,)}) for n, kind in enumerate(kinds)]
    return b"".join(map(encoder.encode, frames))


def headers(plain: bytes) -> tuple[bytes, bytes]:
    """A HEADERS frame with this block, the first of a connection; and the same for all later frames."""
    packer = zlib.compressobj(9, zdict=dictionary())
    # A full flush forgets what came before: the next block is the same for ever.
    first, again = (packer.compress(plain) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return tuple(control(FrameType.HEADERS, _SYN.pack(1) + block) for block in (first, again))  # type: ignore[return-value]


def _block(value: bytes) -> bytes:
    return struct.pack(">II", 1, 1) + b"a" + struct.pack(">I", len(value)) + value


def floods() -> Mapping[str, Flood]:
    """Every kind, by name."""
    small, bomb = headers(struct.pack(">I", 0)), headers(_block(b"x" * 4000))
    into = opened("error", "stdin", "stdout", "stderr")
    byte = struct.pack(">II", 3, 1) + b"x"
    idle = ("sleep", "3600")
    drop = ("sh", "-c", "cat >/dev/null")
    terminal = opened("error", "stdin", "stdout", "resize")
    sizes = b'{"Width":1,"Height":1}' * 1000
    resize = struct.pack(">II", 7, len(sizes)) + sizes
    return {
        "pings": Flood(SpdyEncoder().encode(Ping(1)) * _FRAMES),
        "settings": Flood(control(FrameType.SETTINGS, bytes(4)) * _FRAMES),
        "empty data": Flood(struct.pack(">II", 1, 0) * _FRAMES),
        "data of no stream": Flood(struct.pack(">II", 9, 0) * _FRAMES),
        "headers": Flood(small[1] * _FRAMES, small[0]),
        "header bombs": Flood(bomb[1] * _FRAMES, bomb[0]),
        "empty messages": Flood((b"\x82" + _MASKED) * _FRAMES, websocket=True, command=idle),
        "WebSocket pings": Flood((b"\x89" + _MASKED) * _FRAMES, websocket=True, command=idle),
        "one-byte stdin": Flood(byte * _FRAMES, into, command=drop),
        "one-byte messages": Flood(b"\x82\x82\0\0\0\0\0x" * _FRAMES, websocket=True, command=drop),
        "one-byte output": Flood(b"", into, command=("dd", "if=/dev/zero", "bs=1")),
        "sizes": Flood(resize * 20, terminal, command=idle, tty=True),
    }


FLOODS = floods()


async def begin(client: Client, pod: str, container: str, flood: Flood) -> Line:
    """The connection of one client."""
    runtime = client.runtime
    if flood.command:
        asked = pb.ExecRequest(
            container_id=container,
            cmd=flood.command,
            tty=flood.tty,
            stdin=True,
            stdout=True,
            stderr=not flood.tty,
        )
        url, name = (await runtime.Exec(asked, timeout=_MINUTE)).url, "v4.channel.k8s.io"
    else:
        forward = pb.PortForwardRequest(pod_sandbox_id=pod, port=[PORT])
        url = (await runtime.PortForward(forward, timeout=_MINUTE)).url
        name = "v4.channel.k8s.io" if flood.websocket else "portforward.k8s.io"
    line = await connect("/".join(url.split("/")[:3]))
    if flood.websocket:
        answer = await line.ask(path_of(url), *WEBSOCKET, key(), ("Sec-WebSocket-Protocol", name))
    else:
        answer = await line.ask(path_of(url), *_SPDY, ("X-Stream-Protocol-Version", name), method="POST")
    if answer.status != 101:
        line.close()
        raise ConnectionRefusedError(answer.body.decode(errors="replace"))
    await line.send(flood.begin)
    return line


async def attack(line: Line, flood: Flood, told: Callable[[], None] = lambda: None) -> None:
    """Send until the server closes, and read the server's answers."""

    async def read() -> None:
        while await line.reader.read(1 << 18):
            pass

    reading = asyncio.ensure_future(read())
    try:
        with suppress(OSError):
            while flood.again:
                await line.send(flood.again)
                told()
        await reading
    except OSError:
        return
    finally:
        reading.cancel()
        line.abort()
