"""Connections into a zone through both daemons: their ends, their limits, and a protectd that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cri.zones.client import Zones
from cri.zones.connection import ZoneConnection
from daemonkit.faults import Exhausted, Fault, Invalid, Missing, Refused
from daemonkit.rpc.channels import channel
from tests.support.agent.zone_listener import listen
from tests.support.cri.cri_daemons import CriNode, needs_node
from tools.localnode.cri_client import Client, Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc as rpc

pytestmark = [pytest.mark.root, needs_node]

PORT = 9000


@dataclass
class Stage:
    """A pod, and a server in its network that the test plays."""

    node: CriNode
    client: Client
    zones: Zones
    pod: Pod
    listener: socket.socket

    async def accept(self) -> socket.socket:
        async with asyncio.timeout(60):
            accepted, _ = await asyncio.get_running_loop().sock_accept(self.listener)
        accepted.setblocking(False)
        return accepted

    async def read(self, server: socket.socket) -> bytes:
        """What came; b"" at the end."""
        async with asyncio.timeout(60):
            return await asyncio.get_running_loop().sock_recv(server, 1 << 16)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    node = CriNode(tmp_path)
    await node.start()
    try:
        async with node.client() as client, channel(node.protectd.daemon.socket) as link:
            pod = await client.run_pod("dial")
            zone = await rpc.ZonesStub(link).GetZone(pb.GetZoneRequest(id=pod.id))
            with listen(zone.domain_id, PORT) as listener:
                listener.setblocking(False)
                yield Stage(node, client, Zones(link), pod, listener)
    finally:
        await node.close()


async def received(connection: ZoneConnection, size: int) -> bytes:
    data = bytearray()
    async for piece in connection.chunks():
        data += piece
        if len(data) >= size:
            break
    return bytes(data)


async def test_a_round_trip_and_both_ends(stage: Stage) -> None:
    content = bytes(range(256)) * 4096
    async with stage.zones.dial(stage.pod.id, PORT) as connection:
        with await stage.accept() as server:
            loop = asyncio.get_running_loop()
            sending = asyncio.ensure_future(loop.sock_sendall(server, content))
            assert await received(connection, len(content)) == content
            await sending
            await connection.write(b"thanks")
            await connection.write_eof()
            assert await stage.read(server) == b"thanks"
            assert await stage.read(server) == b""
            server.shutdown(socket.SHUT_WR)
            assert await received(connection, 1) == b""
            await connection.drained()


async def test_dial_to_a_closed_or_invalid_port_or_missing_zone_fails(stage: Stage) -> None:
    for zone, port, kind in (
        (stage.pod.id, 81, Refused),
        (stage.pod.id, 0, Invalid),
        (stage.pod.id, 70_000, Invalid),
        ("nosuch", 80, Missing),
    ):
        with pytest.raises(kind):
            async with stage.zones.dial(zone, port):
                pass


async def test_a_connection_is_closed_with_its_caller(stage: Stage) -> None:
    async with stage.zones.dial(stage.pod.id, PORT):
        server = await stage.accept()
    with server:
        assert await stage.read(server) == b""


async def test_a_killed_protectd_leaves_no_connection(stage: Stage) -> None:
    with pytest.raises(Fault):
        async with stage.zones.dial(stage.pod.id, PORT) as connection:
            server = await stage.accept()
            stage.node.protectd.daemon.kill()
            await received(connection, 1)
    with server:
        await stage.node.protectd.daemon.ended()
        await stage.node.protectd.daemon.start()
        assert await stage.read(server) == b"", "the next one has closed it"
    async with stage.zones.dial(stage.pod.id, PORT) as connection:
        with await stage.accept() as again:
            await connection.write(b"again")
            assert await stage.read(again) == b"again"
    async with asyncio.timeout(60):  # until xenpod-cri has found it, too
        while not (await stage.client.runtime.Status(cri.StatusRequest())).status.conditions[0].status:
            pass


async def test_a_zone_that_ends(stage: Stage) -> None:
    async with stage.zones.dial(stage.pod.id, PORT) as connection:
        with await stage.accept():
            removing = asyncio.ensure_future(stage.client.remove_pod(stage.pod.id))
            with pytest.raises(Fault):
                await received(connection, 1)
            await removing


async def test_dials_beyond_the_zones_limit_are_refused(stage: Stage) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(128):
            await stack.enter_async_context(stage.zones.dial(stage.pod.id, PORT))
        with pytest.raises(Exhausted):
            async with stage.zones.dial(stage.pod.id, PORT):
                pass
