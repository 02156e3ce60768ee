"""Read-only RPCs: lists, statuses, and the stream of events, all answered from memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc.aio

from cri.rpc import container_view, sandbox_view
from cri.rpc.rendered import Rendered, encoded
from cri.state.container import Container
from cri.state.container_events import Event, Events
from cri.state.pod_records import PodRecords
from cri.state.sandbox import Sandbox
from daemonkit.rpc.interceptors import read_only
from daemonkit.rpc.server import batches
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_Context = grpc.aio.ServicerContext[object, object]


class ListingRpcs:
    """The methods of RuntimeService that list, and stream events."""

    def __init__(self, records: PodRecords, events: Events) -> None:
        self._records = records
        self._events = events
        self._pod_lines = Rendered(records.sandboxes, sandbox_view.item)
        self._container_lines = Rendered(records.containers, container_view.item)
        self._pod_statuses = Rendered(records.sandboxes, sandbox_view.status)
        self._container_statuses = Rendered(records.containers, container_view.status)

    @read_only
    async def ListPodSandbox(
        self, request: cri.ListPodSandboxRequest, context: _Context
    ) -> cri.ListPodSandboxResponse:
        lines = self._pod_lines
        found = lines.some(self._sandboxes(request.filter)) if request.filter.ByteSize() else lines.every()
        return encoded(found)  # type: ignore[no-any-return]

    @read_only
    async def PodSandboxStatus(
        self, request: cri.PodSandboxStatusRequest, context: _Context
    ) -> cri.PodSandboxStatusResponse:
        sandbox = self._records.sandboxes.find(request.pod_sandbox_id)
        if not request.verbose:
            return encoded(self._pod_statuses.one(sandbox))  # type: ignore[no-any-return]
        status = sandbox_view.status(sandbox)
        return cri.PodSandboxStatusResponse(status=status, info=sandbox_view.info(sandbox))

    async def StreamPodSandboxes(
        self, request: cri.StreamPodSandboxesRequest, context: _Context
    ) -> AsyncIterator[cri.StreamPodSandboxesResponse]:
        for batch in batches(self._sandboxes(request.filter)):
            items = [sandbox_view.item(one) for one in batch]
            yield cri.StreamPodSandboxesResponse(pod_sandboxes=items)

    @read_only
    async def ListContainers(
        self, request: cri.ListContainersRequest, context: _Context
    ) -> cri.ListContainersResponse:
        lines = self._container_lines
        found = lines.some(self._containers(request.filter)) if request.filter.ByteSize() else lines.every()
        return encoded(found)  # type: ignore[no-any-return]

    @read_only
    async def ContainerStatus(
        self, request: cri.ContainerStatusRequest, context: _Context
    ) -> cri.ContainerStatusResponse:
        container = self._records.containers.find(request.container_id)
        if not request.verbose:
            return encoded(self._container_statuses.one(container))  # type: ignore[no-any-return]
        return cri.ContainerStatusResponse(
            status=container_view.status(container), info=container_view.info(container)
        )

    async def StreamContainers(
        self, request: cri.StreamContainersRequest, context: _Context
    ) -> AsyncIterator[cri.StreamContainersResponse]:
        for batch in batches(self._containers(request.filter)):
            yield cri.StreamContainersResponse(containers=[container_view.item(one) for one in batch])

    async def GetContainerEvents(
        self, request: cri.GetEventsRequest, context: _Context
    ) -> AsyncIterator[cri.ContainerEventResponse]:
        async with aclosing(self._events.subscribe()) as events:
            async for event in events:
                yield _event(event)

    def _sandboxes(self, asked: cri.PodSandboxFilter) -> list[Sandbox]:
        return [one for one in self._records.sandboxes.visible() if sandbox_view.selected(one, asked)]

    def _containers(self, asked: cri.ContainerFilter) -> list[Container]:
        return [one for one in self._records.containers.visible() if container_view.selected(one, asked)]


def _event(event: Event) -> cri.ContainerEventResponse:
    return cri.ContainerEventResponse(
        container_id=event.id,
        container_event_type=event.kind,
        created_at=event.when_ns,
        pod_sandbox_status=sandbox_view.status(event.sandbox) if event.sandbox else None,
        containers_statuses=[container_view.status(container) for container in event.containers],
    )
