"""DRAResourceHealth: whether the node's device can be used now, for the status of pods that have it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from daemonkit.faults import Exhausted
from xenpod_proto.kubelet import health_pb2 as pb
from xenpod_proto.kubelet import health_pb2_grpc as rpc

_AGAIN = 15.0
"""Seconds after which an unchanged state is said again: the kubelet forgets it after 30 by default."""
_WATCHERS = 16


class DeviceHealths(rpc.DRAResourceHealthServicer):
    """The state of one device; ``UNKNOWN`` until it is set."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._device = ""
        self._cause = "protectd has not answered yet"
        self._since = time.time()
        self._changed = asyncio.Event()
        self._watchers = 0

    def set(self, device: str, cause: str) -> None:
        """The device's name, and why it cannot be used; "": it can."""
        if (device, cause) == (self._device, self._cause):
            return
        self._device, self._cause, self._since = device, cause, time.time()
        self._changed.set()
        self._changed = asyncio.Event()

    async def NodeWatchResources(  # noqa: N802
        self, request: pb.NodeWatchResourcesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.NodeWatchResourcesResponse]:
        """The state now, and whenever it has changed, and now and then."""
        if self._watchers >= _WATCHERS:
            raise Exhausted("watch health", self._pool, f"{_WATCHERS} watch it already")
        self._watchers += 1
        try:
            while True:
                changed = self._changed
                yield self._now()
                try:
                    async with asyncio.timeout(_AGAIN):
                        await changed.wait()
                except TimeoutError:
                    continue
        finally:
            self._watchers -= 1

    def _now(self) -> pb.NodeWatchResourcesResponse:
        if not self._device:
            return pb.NodeWatchResourcesResponse()
        state = pb.UNHEALTHY if self._cause else pb.HEALTHY
        return pb.NodeWatchResourcesResponse(
            devices=[
                pb.DeviceHealth(
                    device=pb.DeviceIdentifier(pool_name=self._pool, device_name=self._device),
                    health=state,
                    last_updated_time=int(self._since),
                    message=self._cause[:300],
                )
            ]
        )
