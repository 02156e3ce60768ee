"""Lists, statuses, and the stream of events: all of it answered from memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc.aio

from cri.container import view
from cri.rpc.batches import batches
from cri.rpc.rendered import Rendered, encoded
from cri.sandbox import view as sandbox_view
from cri.state.container import Container
from cri.state.events import Event
from cri.state.node import Node
from cri.state.sandbox import Sandbox
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_Context = grpc.aio.ServicerContext[object, object]


class ListingRpcs:
    """A part of the RuntimeService."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._pod_lines = Rendered(node.sandboxes, sandbox_view.item)
        self._container_lines = Rendered(node.containers, view.item)
        self._pod_statuses = Rendered(node.sandboxes, sandbox_view.status)
        self._container_statuses = Rendered(node.containers, view.status)

    async def ListPodSandbox(
        self, request: cri.ListPodSandboxRequest, context: _Context
    ) -> cri.ListPodSandboxResponse:
        lines = self._pod_lines
        found = lines.some(self._sandboxes(request.filter)) if request.filter.ByteSize() else lines.every()
        return encoded(found)  # type: ignore[no-any-return]

    async def PodSandboxStatus(
        self, request: cri.PodSandboxStatusRequest, context: _Context
    ) -> cri.PodSandboxStatusResponse:
        sandbox = self._node.sandboxes.find(request.pod_sandbox_id)
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

    async def ListContainers(
        self, request: cri.ListContainersRequest, context: _Context
    ) -> cri.ListContainersResponse:
        lines = self._container_lines
        found = lines.some(self._containers(request.filter)) if request.filter.ByteSize() else lines.every()
        return encoded(found)  # type: ignore[no-any-return]

    async def ContainerStatus(
        self, request: cri.ContainerStatusRequest, context: _Context
    ) -> cri.ContainerStatusResponse:
        container = self._node.containers.find(request.container_id)
        if not request.verbose:
            return encoded(self._container_statuses.one(container))  # type: ignore[no-any-return]
        return cri.ContainerStatusResponse(status=view.status(container), info=view.info(container))

    async def StreamContainers(
        self, request: cri.StreamContainersRequest, context: _Context
    ) -> AsyncIterator[cri.StreamContainersResponse]:
        for batch in batches(self._containers(request.filter)):
            yield cri.StreamContainersResponse(containers=[view.item(one) for one in batch])

    async def GetContainerEvents(
        self, request: cri.GetEventsRequest, context: _Context
    ) -> AsyncIterator[cri.ContainerEventResponse]:
        async with aclosing(self._node.events.subscribe()) as events:
            async for event in events:
                yield _event(event)

    def _sandboxes(self, asked: cri.PodSandboxFilter) -> list[Sandbox]:
        return [one for one in self._node.sandboxes.visible() if sandbox_view.selected(one, asked)]

    def _containers(self, asked: cri.ContainerFilter) -> list[Container]:
        return [one for one in self._node.containers.visible() if view.selected(one, asked)]


def _event(event: Event) -> cri.ContainerEventResponse:
    return cri.ContainerEventResponse(
        container_id=event.id,
        container_event_type=event.kind,
        created_at=event.when_ns,
        pod_sandbox_status=sandbox_view.status(event.sandbox) if event.sandbox else None,
        containers_statuses=[view.status(container) for container in event.containers],
    )
