"""Registries of hostile tenants, on loopback, each in the attacker's process."""

from __future__ import annotations

import asyncio
import json
import platform
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from tools.localnode.images import CONFIG, LAYER, MANIFEST, digest

Reply = Callable[[str, asyncio.StreamWriter], Awaitable[None]]
"""Answers a GET of the path."""

MANIFEST_BYTES = 4 << 20
"""images.limits.manifest_bytes of cri.toml."""
_HEADER_BYTES = 60_000
_HEADERS = 3
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CONTINUES, _CONTINUE_PAUSE = 400, 0.04
"""Together 250 kB each second."""
_TRICKLE_PAUSE = 5.0
_BLOB_BYTES = 2048
"""Bytes a second of a layer, above the least rate of a download (images/registry/download.py)."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@asynccontextmanager
async def serving(reply: Reply) -> AsyncIterator[str]:
    """A registry with the given answers, while the block runs: ``127.0.0.1:<port>``."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reply(head.split(b" ", 2)[1].decode(), writer)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=128)
    async with server:
        yield "{}:{}".format(*server.sockets[0].getsockname())


async def challenge(path: str, writer: asyncio.StreamWriter) -> None:
    """WWW-Authenticate headers of one long word."""
    header = b"WWW-Authenticate: Bearer " + b"a" * _HEADER_BYTES + b"\r\n"
    writer.write(b"HTTP/1.1 401 Unauthorized\r\n" + header * _HEADERS + b"Content-Length: 0\r\n\r\n")


async def go_on(path: str, writer: asyncio.StreamWriter) -> None:
    """100 Continue without end."""
    while True:
        writer.write(_CONTINUE * _CONTINUES)
        await writer.drain()
        await asyncio.sleep(_CONTINUE_PAUSE)


async def long_manifest(path: str, writer: asyncio.StreamWriter) -> None:
    """A manifest of the maximum size, with 1.4 million empty objects."""
    start, end = b'{"schemaVersion":2,"x":[', b"{}]}"
    count = (MANIFEST_BYTES - len(start) - len(end)) // 3
    say(writer, start + b"{}," * count + end, MANIFEST)


async def slow_manifest(path: str, writer: asyncio.StreamWriter) -> None:
    """A manifest that sends a byte now and then."""
    writer.write(_head(100_000, MANIFEST))
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(_TRICKLE_PAUSE)


@dataclass(frozen=True, slots=True)
class ServedImage:
    """The documents of an image, and its blobs by digest."""

    manifest: bytes
    blobs: Mapping[str, bytes]
    slowly: bool = False
    """True: the layers are slow."""

    async def __call__(self, path: str, writer: asyncio.StreamWriter) -> None:
        """A ``Reply``."""
        name = path.rpartition("/")[2]
        blob = self.blobs.get(name)
        if blob is None:
            say(writer, self.manifest, MANIFEST)
        elif self.slowly and not blob.startswith(b"{"):
            writer.write(_head(len(blob), "application/octet-stream"))
            for at in range(0, len(blob), _BLOB_BYTES):
                writer.write(blob[at : at + _BLOB_BYTES])
                await writer.drain()
                await asyncio.sleep(1.0)
        else:
            say(writer, blob, "application/octet-stream")


def of_layer(blob: bytes, diff_id: str) -> ServedImage:
    """An image of one layer."""
    rootfs = {"type": "layers", "diff_ids": [diff_id]}
    found = {"architecture": _ARCHITECTURES[platform.machine()], "os": "linux", "rootfs": rootfs}
    config = json.dumps({**found, "config": {}}).encode()
    described = [
        {"mediaType": kind, "digest": digest(data), "size": len(data)}
        for kind, data in ((CONFIG, config), (LAYER, blob))
    ]
    document = {"schemaVersion": 2, "mediaType": MANIFEST, "config": described[0], "layers": described[1:]}
    return ServedImage(json.dumps(document).encode(), {digest(config): config, digest(blob): blob})


def say(writer: asyncio.StreamWriter, body: bytes, kind: str) -> None:
    """A whole answer."""
    writer.write(_head(len(body), kind) + body)


def _head(length: int, kind: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n".encode()
