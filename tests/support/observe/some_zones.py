"""A servicer of zones for tests of what a server and a client tell of their calls."""

from __future__ import annotations

import grpc.aio

from daemonkit import faults
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc


class SomeZones(protect_pb2_grpc.ZonesServicer):
    """Has every zone but ``none``."""

    async def GetZone(self, request, context):  # type: ignore[no-untyped-def]
        if request.id == "none":
            raise faults.Missing("get zone", "none", "there is none")
        return pb.Zone(id=request.id)


def add(server: grpc.aio.Server) -> None:
    protect_pb2_grpc.add_ZonesServicer_to_server(SomeZones(), server)
