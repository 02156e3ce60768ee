"""Connections into a zone through both daemons: their ends, their limits, and a protectd that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from cri.zones.client import Zones
from cri.zones.connection import ZoneConnection
from daemonkit.faults import Exhausted, Fault, Invalid, Missing, Refused
from daemonkit.rpc.channels import channel
from tests.support.agent.zone_listener import listen
from tests.support.cri.cri_daemons import needs_node
from tests.support.cri.stage import Stage
from tools.localnode.cri_client import Pod
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc as rpc

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="module")]

PORT = 9000


@dataclass
class Dialled:
    """A pod, and a server in the pod's network, played by the test."""

    stage: Stage
    zones: Zones
    pod: Pod
    listener: socket.socket

    async def accept(self) -> socket.socket:
        async with asyncio.timeout(60):
            accepted, _ = await asyncio.get_running_loop().sock_accept(self.listener)
        accepted.setblocking(False)
        return accepted

    async def read(self, server: socket.socket) -> bytes:
        """Received bytes; b"" at the end."""
        async with asyncio.timeout(60):
            return await asyncio.get_running_loop().sock_recv(server, 1 << 16)


@pytest_asyncio.fixture(loop_scope="module")
async def dialled(stage: Stage) -> AsyncIterator[Dialled]:
    pod = await stage.client.run_pod("dial")
    async with channel(stage.node.protectd.daemon.socket) as link:
        zone = await rpc.ZonesStub(link).GetZone(pb.GetZoneRequest(id=pod.id))
        with listen(zone.domain_id, PORT) as listener:
            listener.setblocking(False)
            yield Dialled(stage, Zones(link), pod, listener)


async def received(connection: ZoneConnection, size: int) -> bytes:
    data = bytearray()
    async for piece in connection.chunks():
        data += piece
        if len(data) >= size:
            break
    return bytes(data)


async def test_a_round_trip_and_both_ends(dialled: Dialled) -> None:
    content = bytes(range(256)) * 4096
    async with dialled.zones.dial(dialled.pod.id, PORT) as connection:
        with await dialled.accept() as server:
            loop = asyncio.get_running_loop()
            sending = asyncio.ensure_future(loop.sock_sendall(server, content))
            assert await received(connection, len(content)) == content
            await sending
            await connection.write(b"thanks")
            await connection.write_eof()
            assert await dialled.read(server) == b"thanks"
            assert await dialled.read(server) == b""
            server.shutdown(socket.SHUT_WR)
            assert await received(connection, 1) == b""
            await connection.drained()


async def test_dial_to_a_closed_or_invalid_port_or_missing_zone_fails(dialled: Dialled) -> None:
    for zone, port, kind in (
        (dialled.pod.id, 81, Refused),
        (dialled.pod.id, 0, Invalid),
        (dialled.pod.id, 70_000, Invalid),
        ("nosuch", 80, Missing),
    ):
        with pytest.raises(kind):
            async with dialled.zones.dial(zone, port):
                pass


async def test_a_connection_is_closed_with_its_caller(dialled: Dialled) -> None:
    async with dialled.zones.dial(dialled.pod.id, PORT):
        server = await dialled.accept()
    with server:
        assert await dialled.read(server) == b""


async def test_a_killed_protectd_leaves_no_connection(dialled: Dialled) -> None:
    with pytest.raises(Fault):
        async with dialled.zones.dial(dialled.pod.id, PORT) as connection:
            server = await dialled.accept()
            dialled.stage.node.protectd.daemon.kill()
            await received(connection, 1)
    with server:
        await dialled.stage.node.protectd.daemon.ended()
        await dialled.stage.node.protectd.daemon.start()
        assert await dialled.read(server) == b"", "the next one has closed it"
    async with dialled.zones.dial(dialled.pod.id, PORT) as connection:
        with await dialled.accept() as again:
            await connection.write(b"again")
            assert await dialled.read(again) == b"again"


async def test_end_of_the_zone_ends_its_connection(dialled: Dialled) -> None:
    async with dialled.zones.dial(dialled.pod.id, PORT) as connection:
        with await dialled.accept():
            removing = asyncio.ensure_future(dialled.stage.client.remove_pod(dialled.pod.id))
            with pytest.raises(Fault):
                await received(connection, 1)
            await removing


async def test_dials_beyond_the_zones_limit_are_refused(dialled: Dialled) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(128):
            await stack.enter_async_context(dialled.zones.dial(dialled.pod.id, PORT))
        with pytest.raises(Exhausted):
            async with dialled.zones.dial(dialled.pod.id, PORT):
                pass
