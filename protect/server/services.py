"""Adds all services of protect.v1 to a server."""

from __future__ import annotations

import grpc.aio

from protect.server.host import HostServicer
from protect.server.reservations import ReservationsServicer
from protect.server.workloads import WorkloadsServicer
from protect.server.zones import ZonesServicer
from protect.state.manager import ZoneManager
from xenpod_proto.protect.v1 import protect_pb2_grpc, reservations_pb2_grpc


def add(manager: ZoneManager, server: grpc.aio.Server) -> None:
    protect_pb2_grpc.add_ZonesServicer_to_server(ZonesServicer(manager), server)
    protect_pb2_grpc.add_WorkloadsServicer_to_server(WorkloadsServicer(manager), server)
    protect_pb2_grpc.add_HostServicer_to_server(HostServicer(manager), server)
    reservations_pb2_grpc.add_ReservationsServicer_to_server(ReservationsServicer(manager), server)
