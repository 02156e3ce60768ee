"""RPCs for statistics and metrics: each calls its verb."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc.aio

from cri.rpc import container_view
from cri.state.container import Container
from cri.state.pod_records import PodRecords
from cri.stats import metrics
from cri.stats.descriptors import descriptors
from cri.stats.pods import PodStatistics
from cri.zones.client import Zones
from daemonkit.rpc.interceptors import read_only
from daemonkit.rpc.server import batches
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_Context = grpc.aio.ServicerContext[object, object]


class StatisticsRpcs:
    """The methods of RuntimeService about statistics and metrics."""

    def __init__(self, records: PodRecords, zones: Zones, statistics: PodStatistics) -> None:
        self._records = records
        self._zones = zones
        self._pod_statistics = statistics
        self._container_statistics = statistics.containers

    @read_only
    async def ContainerStats(
        self, request: cri.ContainerStatsRequest, context: _Context
    ) -> cri.ContainerStatsResponse:
        container = self._records.containers.find(request.container_id)
        return cri.ContainerStatsResponse(stats=await self._container_statistics.one(container))

    @read_only
    async def ListContainerStats(
        self, request: cri.ListContainerStatsRequest, context: _Context
    ) -> cri.ListContainerStatsResponse:
        found = self._wanted(request.filter)
        return await self._container_statistics.stats(found)

    async def StreamContainerStats(
        self, request: cri.StreamContainerStatsRequest, context: _Context
    ) -> AsyncIterator[cri.StreamContainerStatsResponse]:
        found = await self._container_statistics.stats(self._wanted(request.filter))
        for batch in batches(found.stats):
            yield cri.StreamContainerStatsResponse(container_stats=batch)

    @read_only
    async def PodSandboxStats(
        self, request: cri.PodSandboxStatsRequest, context: _Context
    ) -> cri.PodSandboxStatsResponse:
        sandbox = self._records.sandboxes.find(request.pod_sandbox_id)
        return cri.PodSandboxStatsResponse(stats=await self._pod_statistics.one(sandbox))

    @read_only
    async def ListPodSandboxStats(
        self, request: cri.ListPodSandboxStatsRequest, context: _Context
    ) -> cri.ListPodSandboxStatsResponse:
        found = self._pod_statistics.selected(request.filter)
        return await self._pod_statistics.stats(found)

    async def StreamPodSandboxStats(
        self, request: cri.StreamPodSandboxStatsRequest, context: _Context
    ) -> AsyncIterator[cri.StreamPodSandboxStatsResponse]:
        wanted = self._pod_statistics.selected(request.filter)
        found = await self._pod_statistics.stats(wanted)
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
        return cri.ListPodSandboxMetricsResponse(
            pod_metrics=await metrics.metrics(self._records, self._zones)
        )

    async def StreamPodSandboxMetrics(
        self, request: cri.StreamPodSandboxMetricsRequest, context: _Context
    ) -> AsyncIterator[cri.StreamPodSandboxMetricsResponse]:
        for batch in batches(await metrics.metrics(self._records, self._zones)):
            yield cri.StreamPodSandboxMetricsResponse(pod_sandbox_metrics=batch)

    def _wanted(self, asked: cri.ContainerStatsFilter) -> list[Container]:
        wanted = cri.ContainerFilter(
            id=asked.id, pod_sandbox_id=asked.pod_sandbox_id, label_selector=asked.label_selector
        )
        return [one for one in self._records.containers.visible() if container_view.selected(one, wanted)]
