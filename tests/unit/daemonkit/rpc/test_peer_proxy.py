"""A proxied connection between two sockets, without gRPC: order, back-pressure, half-close, broken peers."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from daemonkit.rpc.peer_proxy import PeerProxy, ProxiedConnection, listen


@dataclass
class Line:
    """client - outer [proxied connection] inner - server"""

    client: socket.socket
    server: socket.socket
    connection: ProxiedConnection
    done: asyncio.Event


@pytest.fixture
async def line() -> Iterator[Line]:  # type: ignore[misc]  # an async generator
    client, outer = socket.socketpair()
    inner, server = socket.socketpair()
    for sock in (client, outer, inner, server):
        sock.setblocking(False)
    done = asyncio.Event()
    buffer = memoryview(bytearray(65536))
    connection = ProxiedConnection(asyncio.get_running_loop(), outer, inner, lambda _: done.set(), buffer)
    yield Line(client, server, connection, done)
    connection.close()
    client.close()
    server.close()


async def fill(sock: socket.socket) -> int:
    """Write until nothing moves for a while; bytes written."""
    block, sent = b"x" * 65536, 0
    loop = asyncio.get_running_loop()
    while True:
        try:
            async with asyncio.timeout(0.3):
                await loop.sock_sendall(sock, block)
        except TimeoutError:
            return sent
        sent += len(block)


async def receive(sock: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    parts = []
    while part := await loop.sock_recv(sock, 1 << 20):
        parts.append(part)
    return b"".join(parts)


async def test_bytes_arrive_whole_and_in_order_both_ways(line: Line) -> None:
    loop = asyncio.get_running_loop()
    up, down = os.urandom(5 << 20), os.urandom(3 << 20)

    async def send(sock: socket.socket, data: bytes) -> None:
        await loop.sock_sendall(sock, data)
        sock.shutdown(socket.SHUT_WR)

    async with asyncio.timeout(60):
        _, _, at_server, at_client = await asyncio.gather(
            send(line.client, up), send(line.server, down), receive(line.server), receive(line.client)
        )
        await line.done.wait()
    assert at_server == up and at_client == down


async def test_a_peer_without_reads_stops_the_writer(line: Line) -> None:
    """The daemon holds at most a chunk; the rest is in the kernel's bounded buffers."""
    assert 0 < await fill(line.client) < 4 << 20
    waiting = [len(way._unsent) for way in line.connection._directions]
    assert sum(waiting) <= 256 * 1024


async def test_half_close_passes_and_the_other_way_goes_on(line: Line) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        await loop.sock_sendall(line.client, b"question")
        line.client.shutdown(socket.SHUT_WR)
        assert await receive(line.server) == b"question"
        await loop.sock_sendall(line.server, b"answer")
        assert await loop.sock_recv(line.client, 100) == b"answer"
        assert not line.done.is_set()
        line.server.close()
        await line.done.wait()


@pytest.mark.parametrize("side", ["client", "server"])
async def test_the_end_of_a_peer_cuts_off_the_other_peer(line: Line, side: str) -> None:
    """Also while bytes for the peer are stuck."""
    gone, stays = (line.client, line.server) if side == "client" else (line.server, line.client)
    await fill(stays)
    gone.close()
    async with asyncio.timeout(60):
        await line.done.wait()
        with pytest.raises(ConnectionError):
            while True:
                await asyncio.get_running_loop().sock_sendall(stays, b"x" * 65536)


async def test_a_client_without_reads_delays_no_other(tmp_path: Path) -> None:
    """The daemon's loop never waits for a client."""
    inner, outer = tmp_path / "inner", tmp_path / "outer"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(64):
            writer.write(b"x" * 65536)
        writer.write_eof()

    async with await asyncio.start_unix_server(answer, inner):
        proxy = PeerProxy(listen(outer), str(inner), "test")
        proxy.open()
        with socket.socket(socket.AF_UNIX) as slow, socket.socket(socket.AF_UNIX) as quick:
            for client in (slow, quick):
                client.setblocking(False)
                client.connect(str(outer))
            async with asyncio.timeout(60):
                assert len(await receive(quick)) == 64 * 65536
                assert len(await receive(slow)) == 64 * 65536
        proxy.close_listener()
        proxy.close()


async def test_closing_twice_is_fine(line: Line) -> None:
    line.connection.close()
    line.connection.close()
    assert line.client.recv(1) == b""
