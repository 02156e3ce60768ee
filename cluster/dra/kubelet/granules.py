"""Zone memory as an extended resource, for clusters without Dynamic Resource Allocation.

The resource is counted in granules of a fixed size, as many as zones can have memory for.  Scheduler and
kubelet do the counting; the identity of a pod's granules means nothing.  Source: the kubelet's device
plugins, v1beta1 (pkg/kubelet/cm/devicemanager).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc.aio

from cluster.dra.config import GranulesConfig
from cluster.dra.model import ZoneMemory
from daemonkit import lifecycle
from daemonkit.backoff import Backoff
from daemonkit.faults import Fault, Unreachable
from daemonkit.logs import fields
from daemonkit.rpc.channels import channel
from daemonkit.rpc.server import serve_unix
from daemonkit.tasks import complete
from xenpod_proto.kubelet import deviceplugin_pb2 as pb
from xenpod_proto.kubelet import deviceplugin_pb2_grpc as rpc

log = logging.getLogger(__name__)

VERSION = "v1beta1"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
MOST_GRANULES = 16_384
"""Granules of a node: a list of 16,384 granules is half a MiB, and each change sends the whole list."""
_PATIENCE_SECONDS = 30.0
"""Seconds for the kubelet's answer, and for its request of the list after our registration."""


class GranulePlugin(rpc.DevicePluginServicer):
    """The granules of this node; none before the first report of protectd."""

    def __init__(self, size: int) -> None:
        """``size``: bytes of a granule."""
        self._size = size
        self._count = 0
        self._health = UNHEALTHY
        self._changed = asyncio.Event()
        self._watchers = 0
        self._watched, self._ended = asyncio.Event(), asyncio.Event()

    def show(self, memory: ZoneMemory | None) -> None:
        """Take over protectd's present report; None: protectd is away, and no pod is to get granules."""
        health = HEALTHY if memory else UNHEALTHY
        count = granules(memory, self._size) if memory else self._count
        if (count, health) != (self._count, self._health):
            self._count, self._health = count, health
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    async def watched(self) -> None:
        """Wait until the kubelet has asked for the list, and then until the kubelet is gone.

        Unreachable: the kubelet does not ask.
        """
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self._watched.wait()
        except TimeoutError:
            cause = f"it has not asked for the granules within {_PATIENCE_SECONDS:.0f} s"
            raise Unreachable("offer granules to", "the kubelet", cause) from None
        await self._ended.wait()

    async def GetDevicePluginOptions(  # noqa: N802
        self, request: pb.Empty, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.DevicePluginOptions:
        """No options."""
        return pb.DevicePluginOptions()

    async def ListAndWatch(  # noqa: N802
        self, request: pb.Empty, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.ListAndWatchResponse]:
        """All granules now, and after each change of their number or of protectd's presence."""
        self._watchers += 1
        self._ended.clear()
        self._watched.set()
        try:
            while True:
                changed = self._changed
                names = (f"granule-{number:05d}" for number in range(self._count))
                yield pb.ListAndWatchResponse(
                    devices=[pb.Device(ID=name, health=self._health) for name in names]
                )
                await changed.wait()
        finally:
            self._watchers -= 1
            if not self._watchers:
                self._watched.clear()
                self._ended.set()

    async def Allocate(  # noqa: N802
        self, request: pb.AllocateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.AllocateResponse:
        """Nothing for any container: the zone has the memory."""
        answers = [pb.ContainerAllocateResponse() for _ in request.container_requests]
        return pb.AllocateResponse(container_responses=answers)


def granules(memory: ZoneMemory, size: int) -> int:
    """Number of granules in the memory for all zones together, without the operators' reservations."""
    return min(max(memory.total - memory.claimed, 0) // size, MOST_GRANULES)


async def offer(config: GranulesConfig, plugin: GranulePlugin) -> None:
    """Serve the plugin, and register with each kubelet: a starting kubelet empties the plugins' folder."""
    backoff = Backoff(0.5, 10.0)
    said = ""
    while True:
        try:
            async with _serving(config, plugin):
                await _register(config)
                log.info("the kubelet has the granules", extra=fields(resource=config.resource))
                lifecycle.notify_ready("the kubelet has the granules")
                backoff.reset()
                said = ""
                await plugin.watched()
        except Fault as fault:
            if str(fault) != said:
                log.warning("%s", fault)
            said = str(fault)
        await asyncio.sleep(backoff.delay())


@asynccontextmanager
async def _serving(config: GranulesConfig, plugin: GranulePlugin) -> AsyncIterator[None]:
    """Like ``serve_unix``.  Its end must not be cancelled: gRPC would wait for the end for ever."""
    async with AsyncExitStack() as stack:
        serving = serve_unix(
            config.socket, lambda server: _add_services(plugin, server), name="granules", grace=1.0
        )
        await serving.__aenter__()
        stack.push_async_callback(lambda: complete(serving.__aexit__(None, None, None)))
        yield


def _add_services(plugin: GranulePlugin, server: grpc.aio.Server) -> None:
    rpc.add_DevicePluginServicer_to_server(plugin, server)


async def _register(config: GranulesConfig) -> None:
    request = pb.RegisterRequest(version=VERSION, endpoint=config.socket.name, resource_name=config.resource)
    async with channel(config.kubelet_socket) as link:
        try:
            await rpc.RegistrationStub(link).Register(request, timeout=_PATIENCE_SECONDS)
        except grpc.aio.AioRpcError as error:
            cause = f"{error.details()} [{error.code().name}]"
            raise Unreachable("register granules with", str(config.kubelet_socket), cause) from error
