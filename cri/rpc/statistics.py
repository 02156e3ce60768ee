"""RPCs for statistics and metrics: each calls its verb."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc.aio

from cri.rpc import container_view
from cri.runtime import Runtime
from cri.state.container import Container
from cri.stats import containers, metrics, pods
from cri.stats.descriptors import descriptors
from cri.stats.rates import Rates
from daemonkit.rpc.interceptors import read_only
from daemonkit.rpc.server import batches
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_Context = grpc.aio.ServicerContext[object, object]


class StatisticsRpcs:
    """The methods of RuntimeService about statistics and metrics."""

    def __init__(self, runtime: Runtime, rates: Rates) -> None:
        self._runtime = runtime
        self._rates = rates

    @read_only
    async def ContainerStats(
        self, request: cri.ContainerStatsRequest, context: _Context
    ) -> cri.ContainerStatsResponse:
        container = self._runtime.containers.find(request.container_id)
        return cri.ContainerStatsResponse(stats=await containers.one(self._runtime, self._rates, container))

    @read_only
    async def ListContainerStats(
        self, request: cri.ListContainerStatsRequest, context: _Context
    ) -> cri.ListContainerStatsResponse:
        found = self._wanted(request.filter)
        return await containers.stats(self._runtime, self._rates, found)

    async def StreamContainerStats(
        self, request: cri.StreamContainerStatsRequest, context: _Context
    ) -> AsyncIterator[cri.StreamContainerStatsResponse]:
        found = await containers.stats(self._runtime, self._rates, self._wanted(request.filter))
        for batch in batches(found.stats):
            yield cri.StreamContainerStatsResponse(container_stats=batch)

    @read_only
    async def PodSandboxStats(
        self, request: cri.PodSandboxStatsRequest, context: _Context
    ) -> cri.PodSandboxStatsResponse:
        sandbox = self._runtime.sandboxes.find(request.pod_sandbox_id)
        return cri.PodSandboxStatsResponse(stats=await pods.one(self._runtime, self._rates, sandbox))

    @read_only
    async def ListPodSandboxStats(
        self, request: cri.ListPodSandboxStatsRequest, context: _Context
    ) -> cri.ListPodSandboxStatsResponse:
        found = pods.selected(self._runtime, request.filter)
        return await pods.stats(self._runtime, self._rates, found)

    async def StreamPodSandboxStats(
        self, request: cri.StreamPodSandboxStatsRequest, context: _Context
    ) -> AsyncIterator[cri.StreamPodSandboxStatsResponse]:
        wanted = pods.selected(self._runtime, request.filter)
        found = await pods.stats(self._runtime, self._rates, wanted)
        for batch in batches(found.stats):
            yield cri.StreamPodSandboxStatsResponse(pod_sandbox_stats=batch)

    @read_only
    async def ListMetricDescriptors(
        self, request: cri.ListMetricDescriptorsRequest, context: _Context
    ) -> cri.ListMetricDescriptorsResponse:
        return cri.ListMetricDescriptorsResponse(descriptors=descriptors())

    @read_only
    async def ListPodSandboxMetrics(
        self, request: cri.ListPodSandboxMetricsRequest, context: _Context
    ) -> cri.ListPodSandboxMetricsResponse:
        return cri.ListPodSandboxMetricsResponse(pod_metrics=await metrics.metrics(self._runtime))

    async def StreamPodSandboxMetrics(
        self, request: cri.StreamPodSandboxMetricsRequest, context: _Context
    ) -> AsyncIterator[cri.StreamPodSandboxMetricsResponse]:
        for batch in batches(await metrics.metrics(self._runtime)):
            yield cri.StreamPodSandboxMetricsResponse(pod_sandbox_metrics=batch)

    def _wanted(self, asked: cri.ContainerStatsFilter) -> list[Container]:
        wanted = cri.ContainerFilter(
            id=asked.id, pod_sandbox_id=asked.pod_sandbox_id, label_selector=asked.label_selector
        )
        return [one for one in self._runtime.containers.visible() if container_view.selected(one, wanted)]
