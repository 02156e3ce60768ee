"""Clients of port-forward and exec, with the right to both for their own pods, and frames without end.

Each client sends 20,000 frames a second: of PINGs 240 kB.
"""

from __future__ import annotations

import asyncio
import functools
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from urllib.parse import urlsplit

from tests.bench.attacks.again import OUTCOMES, again
from tests.bench.attacks.ground import EACH, AttackGround
from tests.support.cri.stream_client import Line, Spdy, spdy, websocket
from tools.localnode.cri_client import Client
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_FRAMES, _PAUSE = 2_000, 0.1
_PING = struct.pack(">HHII", 0x8003, 6, 4, 1)
_SETTINGS = struct.pack(">HHII", 0x8003, 4, 4, 0)
_EMPTY = b"\x82\x80\0\0\0\0"
_PORT_FORWARD = "portforward.k8s.io"
_IDLE = 140
"""Of each attacker: together 1,120, more than a node had streams."""
_CAT = ("sh", "-c", "cat >/dev/null")

_Opened = AbstractAsyncContextManager[tuple[Line, bytes]]
_Open = Callable[[Client, AttackGround, int], _Opened]
"""A stream of the attacker, and the frame for the stream."""


async def pings(ground: AttackGround) -> None:
    await _flood(ground, functools.partial(_forward, frame=_PING))


async def settings(ground: AttackGround) -> None:
    await _flood(ground, functools.partial(_forward, frame=_SETTINGS))


async def empty_frames(ground: AttackGround) -> None:
    await _flood(ground, _socket)


async def single_bytes(ground: AttackGround) -> None:
    """An exec's input in frames of one byte."""
    await _flood(ground, _input)


async def idle(ground: AttackGround) -> None:
    """Idle port-forwards, up to the maximum."""
    async with ground.client() as client:
        await asyncio.gather(*(again(functools.partial(_hold, client, pod), 1.0) for pod in ground.pods))


async def _hold(client: Client, pod: str) -> None:
    """Open port-forwards until the node refuses one; keep all until the node closes one."""
    held: list[Line] = []
    try:
        with suppress(OSError, EOFError, AssertionError):
            while len(held) < _IDLE:
                base, url = await _forwarded(client, pod)
                held.append((await spdy(base, url, _PORT_FORWARD)).line)
                OUTCOMES["opened"] += 1
        if held:
            lost = [asyncio.ensure_future(_discard(line)) for line in held]
            await asyncio.wait(lost, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for line in held:
            line.close()


async def _flood(ground: AttackGround, opened: _Open) -> None:
    async with ground.client() as client:
        floods = (functools.partial(_send, opened, client, ground, number) for number in range(EACH))
        await asyncio.gather(*(again(flood, 1.0) for flood in floods))


async def _send(opened: _Open, client: Client, ground: AttackGround, number: int) -> None:
    """Until the server closes the stream."""
    async with opened(client, ground, number) as (line, frame):
        reading = asyncio.create_task(_discard(line))
        try:
            while not reading.done():
                await line.send(frame * _FRAMES)
                OUTCOMES["frames"] += _FRAMES
                await asyncio.sleep(_PAUSE)
            raise EOFError
        finally:
            reading.cancel()


async def _discard(line: Line) -> None:
    """Read until the server closes the stream."""
    while await line.reader.read(1 << 16):
        pass


@asynccontextmanager
async def _forward(
    client: Client, ground: AttackGround, number: int, *, frame: bytes
) -> AsyncIterator[tuple[Line, bytes]]:
    base, url = await _forwarded(client, ground.pods[number])
    opened: Spdy = await spdy(base, url, _PORT_FORWARD)
    try:
        yield opened.line, frame
    finally:
        opened.line.close()


@asynccontextmanager
async def _socket(client: Client, ground: AttackGround, number: int) -> AsyncIterator[tuple[Line, bytes]]:
    base, url = await _forwarded(client, ground.pods[number])
    opened = await websocket(base, url, "v4.channel.k8s.io")
    try:
        yield opened.line, _EMPTY
    finally:
        opened.line.close()


@asynccontextmanager
async def _input(client: Client, ground: AttackGround, number: int) -> AsyncIterator[tuple[Line, bytes]]:
    container = ground.containers[number]
    asked = cri.ExecRequest(container_id=container, cmd=_CAT, stdin=True, stdout=True, stderr=True)
    url = (await client.runtime.Exec(asked, timeout=60)).url
    opened = await spdy(base_of(url), url)
    try:
        await opened.open_all("error", "stdin", "stdout", "stderr")
        yield opened.line, struct.pack(">II", opened.streams["stdin"], 1) + b"x"
    finally:
        opened.line.close()


async def _forwarded(client: Client, pod: str) -> tuple[str, str]:
    asked = cri.PortForwardRequest(pod_sandbox_id=pod, port=[80])
    url = (await client.runtime.PortForward(asked, timeout=60)).url
    return base_of(url), url


def base_of(url: str) -> str:
    """The server of a stream."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
