"""protectd's logic behind its gRPC server, over domains in memory, as callers see protectd, without root."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from daemonkit.rpc.channels import channel
from daemonkit.rpc.server import serve_unix
from protect.config import HostConfig
from tests.support.agent.agent_sim import SimAgent
from tests.support.protect.daemons import Clients
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.protect_node import MIB, MemoryVolumes, running
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc, reservations_pb2_grpc

TIMEOUT = 60.0


@dataclass(frozen=True)
class Served:
    """A caller's side, and the test's handles on the server's side."""

    clients: Clients
    folder: Path
    toolstack: MemoryToolstack
    volumes: MemoryVolumes

    def agent(self, zone_id: str = "z1") -> SimAgent:
        return self.toolstack.of_zone(zone_id).agent

    def zone_request(self, zone_id: str = "z1", **more: object) -> pb.CreateZoneRequest:
        return pb.CreateZoneRequest(id=zone_id, **more)  # type: ignore[arg-type]

    def request(self, workload_id: str = "w1", **more: object) -> pb.CreateWorkloadRequest:
        """A correct request, changed by ``more``."""
        image = self.folder / "image.squashfs"
        image.touch()
        values: dict[str, object] = {
            "zone_id": "z1",
            "id": workload_id,
            "oci_config": b"{}",
            "filesystems": [pb.Filesystem(path=str(image), type="squashfs")],
            "log_path": str(self.folder / f"{workload_id}.log"),
        }
        return pb.CreateWorkloadRequest(**(values | more))  # type: ignore[arg-type]

    async def create_zone(self, zone_id: str = "z1", **more: object) -> pb.Zone:
        return await self.clients.zones.CreateZone(self.zone_request(zone_id, **more), timeout=TIMEOUT)

    async def create(self, workload_id: str = "w1", **more: object) -> pb.Workload:
        request = self.request(workload_id, **more)
        return await self.clients.workloads.CreateWorkload(request, timeout=TIMEOUT)

    async def start(self, workload_id: str = "w1") -> pb.Workload:
        request = pb.StartWorkloadRequest(id=workload_id)
        return await self.clients.workloads.StartWorkload(request, timeout=TIMEOUT)

    async def get(self, workload_id: str = "w1") -> pb.Workload:
        request = pb.GetWorkloadRequest(id=workload_id)
        return await self.clients.workloads.GetWorkload(request, timeout=TIMEOUT)

    async def wait(self, workload_id: str = "w1") -> pb.Workload:
        request = pb.WaitWorkloadRequest(id=workload_id)
        return await self.clients.workloads.WaitWorkload(request, timeout=TIMEOUT)

    async def turns(self, count: int = 20) -> None:
        """Let all ready tasks run: a call to the server and back comes after all calls sent before."""
        for _ in range(count):
            await self.clients.zones.ListZones(pb.ListZonesRequest(), timeout=TIMEOUT)


@asynccontextmanager
async def served(
    folder: Path, toolstack: MemoryToolstack, host: HostConfig | None = None
) -> AsyncIterator[Served]:
    """``folder`` has a short name, for the socket in the folder."""
    volumes = MemoryVolumes(folder / "volumes")
    path = folder / "protect.sock"
    async with running(folder, toolstack, total=4096 * MIB, volumes=volumes, host=host) as node:
        async with (
            serve_unix(path, node.add_services, name="protectd"),
            channel(path) as link,
        ):
            clients = Clients(
                zones=protect_pb2_grpc.ZonesStub(link),
                workloads=protect_pb2_grpc.WorkloadsStub(link),
                host=protect_pb2_grpc.HostStub(link),
                devices=protect_pb2_grpc.DevicesStub(link),
                reservations=reservations_pb2_grpc.ReservationsStub(link),
            )
            yield Served(clients, folder, toolstack, volumes)
