"""Zone memory as an extended resource: a device plugin kubelet's view, over restarts of either side."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from cluster.dra.config import DraConfig, GranulesConfig
from cluster.dra.daemon import serve_dra
from daemonkit.config import Bytes
from daemonkit.rpc.channels import channel
from daemonkit.rpc.server import serve_unix
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.served import Served, served
from xenpod_proto.kubelet import deviceplugin_pb2 as pb
from xenpod_proto.kubelet import deviceplugin_pb2_grpc as rpc
from xenpod_proto.protect.v1 import protect_pb2
from xenpod_proto.protect.v1 import reservations_pb2 as rpb

TIMEOUT = 60.0
MIB = 1 << 20
GRANULE = 64 * MIB
ALL = 4096 * MIB // GRANULE


@dataclass
class PluginKubelet(rpc.RegistrationServicer):
    """Takes registrations, and asks for the list as a kubelet does."""

    folder: Path
    registered: asyncio.Queue[pb.RegisterRequest] = field(default_factory=asyncio.Queue)

    async def Register(  # noqa: N802
        self, request: pb.RegisterRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.Empty:
        self.registered.put_nowait(request)
        return pb.Empty()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """The plugin as a process: at its start the kubelet empties the folder."""
        for path in self.folder.iterdir():
            if not path.is_dir():
                path.unlink(missing_ok=True)

        def add(server: grpc.aio.Server) -> None:
            rpc.add_RegistrationServicer_to_server(self, server)

        async with serve_unix(self.folder / "kubelet.sock", add, name="kubelet", grace=0.1):
            yield

    @contextlib.asynccontextmanager
    async def plugin(self) -> AsyncIterator[rpc.DevicePluginAsyncStub]:
        """The next plugin that registers."""
        async with asyncio.timeout(TIMEOUT):
            request = await self.registered.get()
        assert (request.version, request.resource_name) == ("v1beta1", "zones.xenpod.dev/memory")
        async with channel(self.folder / request.endpoint) as link:
            yield rpc.DevicePluginStub(link)


@dataclass(frozen=True)
class Node:
    kubelet: PluginKubelet
    protectd: Served


@pytest.fixture
async def node(short_path: Path, toolstack: MemoryToolstack) -> AsyncIterator[Node]:
    """4096 MiB are for zones."""
    async with served(short_path, toolstack) as protectd, offering(short_path) as kubelet:
        yield Node(kubelet, protectd)


@contextlib.asynccontextmanager
async def offering(short_path: Path) -> AsyncIterator[PluginKubelet]:
    """The driver, and a kubelet that does not serve yet."""
    folder = short_path / "d"
    folder.mkdir()
    granules = GranulesConfig(Bytes(GRANULE), devices_dir=folder)
    config = DraConfig(node="node-1", protect_socket=short_path / "protect.sock", granules=granules)
    stop = asyncio.Event()
    task = asyncio.ensure_future(serve_dra(config, stop))
    try:
        yield PluginKubelet(folder)
    finally:
        stop.set()
        await task


async def counted(lists: Any, count: int, health: str = "Healthy") -> None:
    """Read lists until a list has this number of granules, all with this health."""
    found: list[pb.Device] = []
    try:
        async with asyncio.timeout(TIMEOUT):
            async for one in lists:
                found = list(one.devices)
                if len(found) == count and {device.health for device in found} == {health}:
                    assert len({device.ID for device in found}) == count
                    return
    except TimeoutError:
        pass
    raise AssertionError(f"{len(found)} granules, not {count} {health}")


async def test_granules_cover_the_memory_for_zones_less_reservations(node: Node) -> None:
    """Zones do not change the number, because the kubelet counts them. Reservations of an operator do."""
    async with node.kubelet.serving(), node.kubelet.plugin() as plugin:
        lists = plugin.ListAndWatch(pb.Empty())
        await counted(lists, ALL)
        create = protect_pb2.CreateZoneRequest(
            id="z1", resources=protect_pb2.ZoneResources(memory_bytes=512 * MIB)
        )
        await node.protectd.clients.zones.CreateZone(create, timeout=TIMEOUT)
        reserve = rpb.MakeReservationRequest(id="mine", total_bytes=256 * MIB)
        await node.protectd.clients.reservations.MakeReservation(reserve, timeout=TIMEOUT)
        await counted(lists, ALL - 4)
        release = rpb.ReleaseReservationRequest(id="mine")
        await node.protectd.clients.reservations.ReleaseReservation(release, timeout=TIMEOUT)
        await counted(lists, ALL)


async def test_a_container_gets_nothing_for_granules(node: Node) -> None:
    async with node.kubelet.serving(), node.kubelet.plugin() as plugin:
        options = await plugin.GetDevicePluginOptions(pb.Empty(), timeout=TIMEOUT)
        assert not options.pre_start_required and not options.get_preferred_allocation_available
        asked = pb.ContainerAllocateRequest(devices_ids=["granule-00001"])
        answer = await plugin.Allocate(pb.AllocateRequest(container_requests=[asked, asked]), timeout=TIMEOUT)
        assert [one.ByteSize() for one in answer.container_responses] == [0, 0]


async def test_each_kubelet_is_told_anew(node: Node) -> None:
    """Also a kubelet that has emptied its folder, including the plugin's socket."""
    for _ in range(2):
        async with node.kubelet.serving(), node.kubelet.plugin() as plugin:
            lists = plugin.ListAndWatch(pb.Empty())
            await counted(lists, ALL)
            lists.cancel()


async def test_granules_are_unhealthy_while_protectd_is_away(
    short_path: Path, toolstack: MemoryToolstack
) -> None:
    async with offering(short_path) as kubelet, kubelet.serving(), kubelet.plugin() as plugin:
        lists = plugin.ListAndWatch(pb.Empty())
        async with served(short_path, toolstack):
            await counted(lists, ALL)
        await counted(lists, ALL, "Unhealthy")
