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
    """The state of the node's devices, which is the same for all; none until it is set."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._devices: tuple[str, ...] = ()
        self._cause = "protectd has not answered yet"
        self._since = time.time()
        self._changed = asyncio.Event()
        self._watchers = 0

    def set(self, devices: tuple[str, ...], cause: str) -> None:
        """The devices' names, and why they cannot be used; "": they can."""
        if (devices, cause) == (self._devices, self._cause):
            return
        if cause != self._cause:
            self._since = time.time()
        self._devices, self._cause = devices, cause
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
        state = pb.UNHEALTHY if self._cause else pb.HEALTHY
        return pb.NodeWatchResourcesResponse(
            devices=[
                pb.DeviceHealth(
                    device=pb.DeviceIdentifier(pool_name=self._pool, device_name=device),
                    health=state,
                    last_updated_time=int(self._since),
                    message=self._cause[:300],
                )
                for device in self._devices
            ]
        )
