"""Speed of exec and port-forward, on each side, for a client with SPDY.

No input of a port-forward: containerd 1.6 loses bytes that arrive faster than it reads.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from cri.streaming.spdy.encode import SpdyEncoder
from cri.streaming.spdy.frames import Data, SynStream
from tests.bench.measure import Samples
from tests.bench.sides import Side
from tests.support.cri.stream_client import connect, path_of
from tools.localnode.cri_client import Client, Pod
from xenpod_proto.cri.v1 import runtime_pb2 as pb

MIB = 1 << 20
_PIECE = 32 * 1024
_READ = 1 << 18
_TIMEOUT = 300.0
_HEAD = struct.Struct(">II")
_CONTROL = 1 << 31
_PORT = 8080
_SERVE = "mkdir -p /www; head -c {size} /dev/zero >/www/big; httpd -p 127.0.0.1:{port} -h /www"


class Raw:
    """A SPDY client that counts and drops data: the benchmark measures the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._encoder = SpdyEncoder()
        self._last = -1
        self._rest = b""
        self._skip = 0
        self.counts: dict[int, int] = {}
        self.ended: set[int] = set()

    def open(self, **headers: str) -> int:
        """Open a stream without waiting for the reply."""
        self._last += 2
        self._writer.write(
            self._encoder.encode(SynStream(self._last, {name: (value,) for name, value in headers.items()}))
        )
        return self._last

    async def send(self, stream: int, size: int) -> None:
        """The given number of bytes, without an end: at the end containerd 1.6 drops unread bytes."""
        frame = self._encoder.encode(Data(stream, bytes(_PIECE)))
        for _ in range(size // _PIECE):
            self._writer.write(frame)
            await self._writer.drain()

    def request(self, stream: int, data: bytes) -> None:
        self._writer.write(self._encoder.encode(Data(stream, data)))

    async def until_ended(self, *streams: int) -> None:
        """Read until the stream ends, or the server closes the connection, as some do instead."""
        while not self.ended.issuperset(streams) and (data := await self._reader.read(_READ)):
            self._count(self._rest + data)

    def close(self) -> None:
        self._writer.transport.abort()

    def _count(self, data: bytes) -> None:
        at = 0
        while True:
            skipped = min(self._skip, len(data) - at)
            self._skip -= skipped
            at += skipped
            if len(data) - at < _HEAD.size:
                break
            first, second = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            self._skip = second & 0xFFFFFF
            if not first & _CONTROL:
                self.counts[first] = self.counts.get(first, 0) + self._skip
                if second >> 24 & 1:
                    self.ended.add(first)
        self._rest = data[at:]


@asynccontextmanager
async def upgraded(url: str, protocol: str) -> AsyncIterator[Raw]:
    """Connect to a streaming URL."""
    line = await connect("/".join(url.split("/")[:3]))
    headers = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", protocol)]
    answer = await line.ask(path_of(url), *headers, ("Content-Length", "0"), method="POST")
    if answer.status != 101:
        raise RuntimeError(f"not upgraded: {answer}")
    raw = Raw(line.reader, line.writer)
    try:
        yield raw
    finally:
        raw.close()


async def _exec(client: Client, container: str, script: str, stdin: int) -> int:
    """Run a command; returns the bytes of its output."""
    request = pb.ExecRequest(
        container_id=container, cmd=["sh", "-c", script], stdin=bool(stdin), stdout=True, stderr=False
    )
    url = (await client.runtime.Exec(request, timeout=_TIMEOUT)).url
    async with upgraded(url, "v4.channel.k8s.io") as raw:
        error, out = raw.open(streamtype="error"), 0
        into = raw.open(streamtype="stdin") if stdin else 0
        out = raw.open(streamtype="stdout")
        sending = asyncio.ensure_future(raw.send(into, stdin)) if stdin else None
        await raw.until_ended(error, out)
        if sending:
            await sending
        return raw.counts.get(out, 0)


async def exec_out(client: Client, pod: Pod, container: str, size: int) -> int:
    return await _exec(client, container, f"head -c {size} /dev/zero", 0)


async def exec_in(client: Client, pod: Pod, container: str, size: int) -> int:
    await _exec(client, container, f"head -c {size} | wc -c >/got", size)
    return await _got(client, container)


async def forward_out(client: Client, pod: Pod, container: str, size: int) -> int:
    async with _forwarded(client, pod, _PORT) as (raw, data):
        raw.request(data, b"GET /big HTTP/1.0\r\n\r\n")
        await raw.until_ended(data)
        return min(raw.counts[data], size)  # without the answer's head


@asynccontextmanager
async def _forwarded(client: Client, pod: Pod, port: int) -> AsyncIterator[tuple[Raw, int]]:
    request = pb.PortForwardRequest(pod_sandbox_id=pod.id, port=[port])
    url = (await client.runtime.PortForward(request, timeout=_TIMEOUT)).url
    async with upgraded(url, "portforward.k8s.io") as raw:
        raw.open(streamtype="error", port=str(port), requestid="0")
        yield raw, raw.open(streamtype="data", port=str(port), requestid="0")


async def _got(client: Client, container: str) -> int:
    return int((await client.exec(container, "cat", "/got")).stdout)


Way = Callable[[Client, Pod, str, int], Awaitable[int]]
"""(client, pod, container, bytes) to how many came through."""

WAYS: Mapping[str, Way] = {
    "exec, output": exec_out,
    "exec, input": exec_in,
    "port-forward, from the pod": forward_out,
}


async def measure(
    running: Mapping[str, Side], images: Mapping[str, str], size: int, rounds: int
) -> dict[str, Samples]:
    """Seconds for ``size`` bytes (a multiple of a MiB) each way; the sides take turns."""
    samples = {name: Samples() for name in running}
    places = {name: await _place(side.client, images[name], size) for name, side in running.items()}
    try:
        for step, way in WAYS.items():
            for number in range(-1, rounds):
                for name, side in running.items():
                    kept = samples[name] if number >= 0 else Samples()
                    async with asyncio.timeout(_TIMEOUT):
                        came = await kept.time(step, way(side.client, *places[name], size))
                    if came != size:
                        raise RuntimeError(f"{name}, {step}: {came} bytes of {size} came through")
    finally:
        for name, side in running.items():
            await side.client.remove_pod(places[name][0].id)
    return samples


async def _place(client: Client, image: str, size: int) -> tuple[Pod, str]:
    pod = await client.run_pod("streams")
    container = await client.create(pod, image, ("sleep", "36000"))
    await client.start(container)
    await client.exec(container, "sh", "-c", _SERVE.format(size=size, port=_PORT))
    return pod, container
