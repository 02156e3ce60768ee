"""Runs the driver: its services, and the tasks that carry protectd's state into the slice and the health."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc.aio

from cluster.dra import dra_metrics
from cluster.dra.claims.prepare import Claims
from cluster.dra.claims.turns import claim_turns
from cluster.dra.config import DraConfig
from cluster.dra.kube.api import ClusterApi
from cluster.dra.kube.claim_events import RefusalEvents
from cluster.dra.kubelet.granules import GranulePlugin, offer
from cluster.dra.kubelet.health import DeviceHealths, HealthV1, HealthV1alpha1
from cluster.dra.kubelet.plugin import PluginV1, PluginV1beta1
from cluster.dra.kubelet.registration import Registrar
from cluster.dra.model import ZoneMemory
from cluster.dra.protectd_reservations import ProtectdReservations
from cluster.dra.slices.document import Attributes
from cluster.dra.slices.keeper import SliceKeeper
from daemonkit import lifecycle
from daemonkit.backoff import Backoff
from daemonkit.faults import Fault
from daemonkit.observe.exposition import serving_metrics
from daemonkit.rpc.channels import channel
from daemonkit.rpc.server import serve_unix
from xenpod_proto.kubelet import (
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2_grpc,
    health_v1_pb2_grpc,
    health_v1alpha1_pb2_grpc,
    registration_pb2_grpc,
)

log = logging.getLogger(__name__)


async def serve_dra(config: DraConfig, stop: asyncio.Event) -> None:
    """Serve until ``stop``.  The slice and the reservations stay: pods with claims run on."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving_metrics(config.metrics, "xenpod-dra"))
        link = await stack.enter_async_context(channel(config.protect_socket))
        protectd = ProtectdReservations(link)
        if config.granules.size:
            plugin = GranulePlugin(config.granules.size)
            await _until(
                stop, _follow(protectd, lambda memory, _: plugin.show(memory)), offer(config.granules, plugin)
            )
            return
        api = ClusterApi(config.kubeconfig)
        health = DeviceHealths(config.node_name)
        events = RefusalEvents(config.kubeconfig, config.driver, config.node_name)
        keeper = SliceKeeper(config, api, protectd, health.set)
        turns = stack.enter_context(claim_turns(config.turns_file))
        claims = Claims(config, api, protectd, keeper, events, turns)
        await stack.enter_async_context(_serving(config, claims, health, keeper.registered))
        await _until(stop, _follow(protectd, keeper.show), keeper.keep(), events.run())


async def _until(stop: asyncio.Event, *running: Coroutine[Any, Any, None]) -> None:
    async with asyncio.TaskGroup() as tasks:
        work = [tasks.create_task(one) for one in running]
        await stop.wait()
        for task in work:
            task.cancel()


@asynccontextmanager
async def _serving(
    config: DraConfig, claims: Claims, health: DeviceHealths, registered: Callable[[], None]
) -> AsyncIterator[None]:
    """Serve both sockets, the driver's first: the kubelet uses it after finding the registration socket."""

    def add_plugin(server: grpc.aio.Server) -> None:
        dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(PluginV1(claims), server)
        dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(PluginV1beta1(claims), server)
        health_v1_pb2_grpc.add_DRAResourceHealthServicer_to_server(HealthV1(health), server)
        health_v1alpha1_pb2_grpc.add_DRAResourceHealthServicer_to_server(HealthV1alpha1(health), server)

    def told(error: str) -> None:
        if not error:
            lifecycle.notify_ready("the kubelet has registered the driver")
            registered()

    def add_registrar(server: grpc.aio.Server) -> None:
        registrar = Registrar(config.driver, config.plugin_socket, told)
        registration_pb2_grpc.add_RegistrationServicer_to_server(registrar, server)

    async with (
        serve_unix(config.plugin_socket, add_plugin, name="xenpod-dra"),
        serve_unix(config.registration_socket, add_registrar, name="xenpod-dra registration"),
    ):
        yield


async def _follow(
    protectd: ProtectdReservations, show: Callable[[ZoneMemory | None, Attributes], None]
) -> None:
    """Pass on protectd's reports for as long as the daemon runs; None: protectd does not answer."""
    backoff = Backoff(0.5, 10.0)
    while True:
        try:
            attributes = await protectd.attributes()
            async for memory in protectd.watch():
                dra_metrics.host(memory)
                show(memory, attributes)
                backoff.reset()
        except Fault as fault:
            log.warning("lost protectd: %s", fault)
        dra_metrics.host(None)
        show(None, {})
        await asyncio.sleep(backoff.delay())
