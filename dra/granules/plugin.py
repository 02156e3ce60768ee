"""DevicePlugin v1beta1: tells the kubelet which granules there are, and reserves those that it gives away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc.aio

from daemonkit.faults import Fault, Invalid, Unsupported
from dra.granules.devices import MOST
from xenpod_proto.kubelet import deviceplugin_pb2 as pb
from xenpod_proto.kubelet import deviceplugin_pb2_grpc as rpc

log = logging.getLogger(__name__)

_HEALTH = {True: "Healthy", False: "Unhealthy"}

Context = grpc.aio.ServicerContext[Any, Any]


class GranulePlugin(rpc.DevicePluginServicer):
    """``allocate`` reserves granules, by their names, for a container; its fault refuses the pod."""

    def __init__(self, allocate: Callable[[tuple[str, ...]], Awaitable[None]]) -> None:
        self._allocate = allocate
        self._granules: Mapping[str, bool] | None = None
        self._changed = asyncio.Condition()
        self._watched = asyncio.Event()
        self._left = asyncio.Event()

    async def show(self, granules: Mapping[str, bool]) -> None:
        """Tell the kubelet what there is from now on."""
        async with self._changed:
            if granules != self._granules:
                self._granules = granules
                self._changed.notify_all()

    async def _other_than(self, shown: Mapping[str, bool] | None) -> Mapping[str, bool]:
        async with self._changed:
            while (now := self._granules) is None or now == shown:
                await self._changed.wait()
            return now

    def arm(self) -> None:
        """Begin to wait for a kubelet."""
        self._watched.clear()
        self._left.clear()

    async def watched(self) -> None:
        """Return once a kubelet watches."""
        await self._watched.wait()

    async def left(self) -> None:
        """Return once the kubelet that watched has gone."""
        await self._left.wait()

    async def GetDevicePluginOptions(  # noqa: N802
        self, request: pb.Empty, context: Context
    ) -> pb.DevicePluginOptions:
        """No call is wanted but Allocate."""
        return pb.DevicePluginOptions()

    async def ListAndWatch(  # noqa: N802
        self, request: pb.Empty, context: Context
    ) -> AsyncIterator[pb.ListAndWatchResponse]:
        """What there is now, then each time it is another."""
        self._watched.set()
        try:
            shown: Mapping[str, bool] | None = None
            while True:
                shown = await self._other_than(shown)
                found = (pb.Device(ID=name, health=_HEALTH[healthy]) for name, healthy in shown.items())
                yield pb.ListAndWatchResponse(devices=found)
        finally:
            self._left.set()

    async def Allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:  # noqa: N802
        """Reserve the granules of each container, or have the kubelet refuse its pod."""
        try:
            for one in request.container_requests:
                if not 0 < len(one.devices_ids) <= MOST:
                    cause = f"{len(one.devices_ids)} granules are not 1 to {MOST}"
                    raise Invalid("allocate granules", "", cause)
                await self._allocate(tuple(one.devices_ids))
        except Fault as fault:
            log.warning("%s", fault)
            raise
        return pb.AllocateResponse(
            container_responses=[pb.ContainerAllocateResponse() for _ in request.container_requests]
        )

    async def GetPreferredAllocation(  # noqa: N802
        self, request: pb.PreferredAllocationRequest, context: Context
    ) -> pb.PreferredAllocationResponse:
        """Not among our options, so no kubelet asks."""
        raise Unsupported("prefer granules", "", "one is as good as another", "take any")

    async def PreStartContainer(  # noqa: N802
        self, request: pb.PreStartContainerRequest, context: Context
    ) -> pb.PreStartContainerResponse:
        """Not among our options, so no kubelet asks."""
        raise Unsupported("prepare container", "", "its granules are reserved already", "start it")
