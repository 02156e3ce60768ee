"""The device plugin at work: protectd's capacity becomes granules, and what is given away reservations."""

from __future__ import annotations

import asyncio
import logging

import grpc.aio

from daemonkit import lifecycle
from daemonkit.backoff import Backoff
from daemonkit.faults import Fault
from daemonkit.grpc_server import channel, serve_unix
from daemonkit.observe.exposition import serving_metrics
from dra import metrics
from dra.config import DraConfig
from dra.granules.devices import granules
from dra.granules.holdings import Holdings
from dra.granules.kubelet import Kubelet
from dra.granules.plugin import GranulePlugin
from dra.granules.pods import PodUids
from dra.model import HostMemory
from dra.reservations import ProtectdReservations
from xenpod_proto.kubelet import deviceplugin_pb2_grpc

log = logging.getLogger(__name__)


async def serve(config: DraConfig, stop: asyncio.Event) -> None:
    """Serve until ``stop``.  Reservations stay afterwards: pods that have granules run on."""
    async with serving_metrics(config.metrics, "xenpod-dra"), channel(config.protect_socket) as link:
        served = _Granules(config, ProtectdReservations(link))
        async with asyncio.TaskGroup() as tasks:
            parts = (
                served.follow_protectd(),
                served.holdings.keep(config.granules.check_interval),
                served.stay_registered(),
            )
            work = [tasks.create_task(part) for part in parts]
            await stop.wait()
            for task in work:
                task.cancel()


class _Granules:
    def __init__(self, config: DraConfig, protectd: ProtectdReservations) -> None:
        settings = config.granules
        self._config = config
        self._protectd = protectd
        self._memory: HostMemory | None = None
        self._known = False
        self._kubelet = Kubelet(settings.plugins_dir, settings.pod_resources_socket, settings.resource)
        pods = PodUids(config.kubeconfig, config.node_name)
        self.holdings = Holdings(settings.size, protectd, self._kubelet.holders, pods, self._show)
        self._plugin = GranulePlugin(self.holdings.allocate)

    async def follow_protectd(self) -> None:
        """Show what protectd says, for as long as the daemon runs; while it is away no granule is healthy."""
        backoff = Backoff(0.5, 10.0)
        while True:
            try:
                async for memory in self._protectd.watch():
                    self._memory, self._known = memory, True
                    metrics.host(memory)
                    await self._show()
                    backoff.reset()
            except Fault as fault:
                log.warning("lost protectd: %s", fault)
            self._memory = None
            metrics.host(None)
            await self._show()
            await asyncio.sleep(backoff.delay())

    async def stay_registered(self) -> None:
        """Serve and register, and anew after each restart of the kubelet, which removes the socket."""
        backoff = Backoff(0.5, 10.0)
        endpoint = self._config.granules_socket
        while True:
            self._plugin.arm()
            try:
                async with serve_unix(endpoint, self._add, name="xenpod-dra granules"):
                    await self._kubelet.register(endpoint.name)
                    await self._plugin.watched()
                    backoff.reset()
                    lifecycle.ready("the kubelet has registered the device plugin")
                    await self._plugin.left()
                    log.warning("the kubelet has gone")
            except Fault as fault:
                log.warning("%s", fault)
            await asyncio.sleep(backoff.delay())

    async def _show(self) -> None:
        if self._known:  # the kubelet keeps what it was told by the one before
            found = granules(self._memory, self._config.granules.size, self.holdings.granules)
            await self._plugin.show(found)

    def _add(self, server: grpc.aio.Server) -> None:
        deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server(self._plugin, server)
