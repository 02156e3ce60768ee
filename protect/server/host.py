"""protect.v1.Host."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from importlib.metadata import version
from typing import Any

import grpc.aio

from protect.server import translate
from protect.state.node import Node
from protect.zones.reconcile import unknown
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class HostServicer(protect_pb2_grpc.HostServicer):
    """What the host is and has, and every change."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def Info(self, request: pb.InfoRequest, context: Context) -> pb.InfoResponse:
        node = self._node
        physical = await node.toolstack.physical_info()
        strangers = unknown(node, await node.toolstack.list())
        ledger = node.ledger
        return pb.InfoResponse(
            version=version("xenpod"),
            toolstack=node.toolstack.name,
            security_boundary=physical.security_boundary,
            notices=physical.notices,
            memory=pb.MemoryLedger(
                total_bytes=ledger.total_bytes,
                reserved_bytes=ledger.reserved_bytes,
                free_bytes=ledger.free_bytes,
            ),
            cpus=physical.cpus,
            profiles=node.config.profile_names(),
            xen_version=physical.version,
            user_namespaces=physical.user_namespaces,
            zone_kernels=physical.kernels,
            unknown_domains=[f"{domain.id} {domain.name} {domain.uuid}" for domain in strangers],
        )

    async def Watch(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.WatchEvent]:
        toolstack = self._node.toolstack.name
        async with aclosing(self._node.hub.watch()) as events:
            async for event in events:
                yield translate.event(event, toolstack)
