"""Hostile clients of the streaming server: ten thousand clients, and a good client beside them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import resource
import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cri.streaming.server import Server
from cri.streaming.spdy.encode import SpdyEncoder
from cri.streaming.spdy.frames import Data, SynStream
from cri.streaming.spdy.headers import dictionary
from tests.support.cri.stream_client import WEBSOCKET, Spdy, connect, key, path_of, spdy, websocket
from tests.support.cri.stream_jobs import Echo, Play, echo, forever, forwarding, streaming_server

CLIENTS = 10_000
AT_ONCE = 50
WARM = 4000
"""Clients until nothing more is allocated once."""
GROWTH = 48 << 20
"""Bytes of allowed growth of the server's process, which is the test's, after the warm-up."""

SPDY = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1"), ("Content-Length", "0")]


def bomb() -> bytes:
    """A header block of 8 MiB once unpacked."""
    packer = zlib.compressobj(9, zdict=dictionary())
    block = packer.compress(b"\0" * (8 << 20)) + packer.flush(zlib.Z_SYNC_FLUSH)
    body = struct.pack(">IIBB", 1, 0, 0, 0) + block
    return struct.pack(">HHI", 0x8003, 1, len(body)) + body


def flood() -> bytes:
    """Streams without end, and data for the streams."""
    encoder = SpdyEncoder()
    frames = []
    for number in range(1, 400, 2):
        frames.append(encoder.encode(SynStream(number, {"streamtype": ("error",), "port": ("80",)})))
        frames.append(encoder.encode(Data(number, b"x" * 100)))
    return b"".join(frames)


BOMB, FLOOD = bomb(), flood()
HEADERS = b"GET /exec/x HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (n, b"y" * 1000) for n in range(1000))
"""A request whose head is longer than a megabyte."""


def payload(noise: random.Random) -> bytes:
    """Payload after the switch of the protocol."""
    kind = noise.randrange(6)
    if kind == 0:
        return noise.randbytes(noise.randrange(2000))
    if kind == 1:
        return BOMB
    if kind == 2:
        return FLOOD
    if kind == 3:
        mutated = bytearray(FLOOD)
        for _ in range(20):
            mutated[noise.randrange(len(mutated))] ^= 1 << noise.randrange(8)
        return bytes(mutated)
    if kind == 4:  # WebSocket: a data frame of 2^62 bytes, masked
        return b"\x82\xff" + struct.pack(">Q", 1 << 62) + b"mask" + noise.randbytes(500)
    return b"\x82\x80mask" * 300


async def attack(streaming: Server, play: Play, echoes: Echo, noise: random.Random) -> None:
    """A client with a good token or none, over either transport, which stays a moment or leaves at once."""
    line = await connect(streaming.base)
    kind = noise.randrange(20)
    if kind == 0:
        await line.send(HEADERS)
    elif kind < 4:
        await line.send(noise.randbytes(noise.randrange(1, 3000)))
    elif kind < 8:
        answer = await line.ask(f"/exec/{noise.randbytes(24).hex()}", *WEBSOCKET, key())
        assert answer.status == 404
    else:
        pod = f"p{noise.randrange(1000)}"
        port_forward = replace(forwarding(echoes, ports=(80, 81)), subject=pod, namespace=pod)
        job = play.job(forever, pod=pod) if noise.random() < 0.5 else port_forward
        path = path_of(streaming.url(job))
        headers = [*WEBSOCKET, key()] if noise.random() < 0.5 else SPDY
        answer = await line.ask(path, *headers)
        assert answer.status == 101
        assert (await (again := await connect(streaming.base)).ask(path, *headers)).status == 404
        again.close()
        await line.send(payload(noise))
    if noise.random() < 0.3:
        async with asyncio.timeout(0.05) if noise.random() < 0.9 else asyncio.timeout(0.5):
            await line.reader.read(1)
    if noise.random() < 0.5:
        line.abort()
    else:
        line.close()


async def echoed(client: Spdy, size: int) -> None:
    await client.until(lambda: len(client.text("stdout")) == size)


def resident() -> int:
    """Memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.slow
async def test_ten_thousand_hostile_clients(caplog: pytest.LogCaptureFixture) -> None:
    play, echoes = Play(), Echo()
    async with streaming_server(handshake_timeout=5.0, connections_per_pod=1024) as streaming:
        good = await spdy(streaming.base, streaming.url(Play().job(echo)))
        await good.open_all("error", "stdin", "stdout", "stderr")

        async def enemy(seeds: Iterator[int]) -> None:
            for seed in seeds:
                # A server that closes first is not the client's failure.
                try:
                    await attack(streaming, play, echoes, random.Random(seed))
                except (OSError, EOFError, TimeoutError):
                    continue

        async def many(seeds: Iterator[int]) -> None:
            await asyncio.gather(*(enemy(seeds) for _ in range(AT_ONCE)))

        await many(iter(range(WARM)))
        gc.collect()
        before = resident()
        sent = bytearray()
        fighting = asyncio.ensure_future(many(iter(range(WARM, CLIENTS))))
        while not fighting.done():
            await good.write("stdin", piece := random.Random(len(sent)).randbytes(10_000))
            sent += piece
            await echoed(good, len(sent))
            await asyncio.sleep(0.05)
        await fighting
        await good.write("stdin", b"", fin=True)
        await good.finished("error", "stdout")
        assert good.text("stdout") == bytes(sent), "unharmed"
        await play.until(lambda: play.cancelled == play.begun)
        await echoes.until(lambda: echoes.open == 0)
        gc.collect()
        assert resident() - before < GROWTH + 2 * len(sent)
        fresh = await websocket(streaming.base, streaming.url(Play().job(echo)))
        await fresh.send(b"\xff\0")
        await fresh.until(lambda: fresh.closed)
    assert play.begun > 100, "some had good tokens"
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


async def test_half_open_connections_by_the_thousand() -> None:
    """Hostile clients wait in vain; clients with a token are served, and in the end all are gone."""
    async with streaming_server(handshake_timeout=3.0) as streaming:
        lines = [await connect(streaming.base) for _ in range(2000)]
        client = await websocket(streaming.base, streaming.url(Play().job(echo)))
        await client.send(b"\0hello")
        await client.send(b"\xff\0")
        await client.until(lambda: client.closed)
        assert client.channel(1) == b"hello"
        for line in lines:
            async with asyncio.timeout(60):
                with contextlib.suppress(ConnectionResetError):
                    assert await line.reader.read() == b""
            line.close()
