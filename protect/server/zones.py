"""protect.v1.Zones."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import grpc.aio

from protect import checks
from protect.node import Node, ZoneRuntime
from protect.server import requests, translate
from protect.zones import connect, destroy, facts, launch
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class ZonesServicer(protect_pb2_grpc.ZonesServicer):
    """Thin: check, do, translate."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def CreateZone(self, request: pb.CreateZoneRequest, context: Context) -> pb.Zone:
        spec = requests.zone_spec(self._node.config, request)
        await launch.launch(self._node, spec)
        return self._shown(self._node.zone("create zone", spec.id))

    async def ConnectNetwork(
        self, request: pb.ConnectNetworkRequest, context: Context
    ) -> pb.ConnectNetworkResponse:
        operation = "connect network"
        zone_id = checks.identifier(operation, "zone", request.zone_id)
        netns = checks.path(operation, "network namespace", request.netns_path)
        await connect.connect(self._node, zone_id, netns, checks.interface(operation, request.interface))
        return pb.ConnectNetworkResponse()

    async def GetZone(self, request: pb.GetZoneRequest, context: Context) -> pb.Zone:
        return self._shown(self._node.zone("get zone", checks.identifier("get zone", "zone", request.id)))

    async def ListZones(self, request: pb.ListZonesRequest, context: Context) -> pb.ListZonesResponse:
        return pb.ListZonesResponse(zones=[self._shown(zone) for zone in self._node.zones.values()])

    async def DestroyZone(self, request: pb.DestroyZoneRequest, context: Context) -> pb.DestroyZoneResponse:
        await destroy.destroy(self._node, checks.identifier("destroy zone", "zone", request.id))
        return pb.DestroyZoneResponse()

    async def ZoneFacts(self, request: pb.ZoneFactsRequest, context: Context) -> pb.ZoneFactsResponse:
        zone_id = checks.identifier("ask zone", "zone", request.id)
        return pb.ZoneFactsResponse(**asdict(await facts.facts(self._node, zone_id)))

    def _shown(self, runtime: ZoneRuntime) -> pb.Zone:
        toolstack = self._node.toolstack.name
        return translate.zone(runtime.zone, connected=runtime.connected, toolstack=toolstack)
