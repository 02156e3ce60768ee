"""Lists, and the stream of events: all of it answered from memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc.aio

from cri.batches import batches
from cri.container import view
from cri.events import Event
from cri.node import Node
from cri.sandbox import view as sandbox_view
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_Context = grpc.aio.ServicerContext[object, object]


class ListingRpcs:
    """A part of the RuntimeService."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def ListPodSandbox(
        self, request: cri.ListPodSandboxRequest, context: _Context
    ) -> cri.ListPodSandboxResponse:
        return cri.ListPodSandboxResponse(items=self._pods(request.filter))

    async def StreamPodSandboxes(
        self, request: cri.StreamPodSandboxesRequest, context: _Context
    ) -> AsyncIterator[cri.StreamPodSandboxesResponse]:
        for batch in batches(self._pods(request.filter)):
            yield cri.StreamPodSandboxesResponse(pod_sandboxes=batch)

    async def ListContainers(
        self, request: cri.ListContainersRequest, context: _Context
    ) -> cri.ListContainersResponse:
        return cri.ListContainersResponse(containers=self._containers(request.filter))

    async def StreamContainers(
        self, request: cri.StreamContainersRequest, context: _Context
    ) -> AsyncIterator[cri.StreamContainersResponse]:
        for batch in batches(self._containers(request.filter)):
            yield cri.StreamContainersResponse(containers=batch)

    async def GetContainerEvents(
        self, request: cri.GetEventsRequest, context: _Context
    ) -> AsyncIterator[cri.ContainerEventResponse]:
        async with aclosing(self._node.events.subscribe()) as events:
            async for event in events:
                yield _event(event)

    def _pods(self, asked: cri.PodSandboxFilter) -> list[cri.PodSandbox]:
        found = (one for one in self._node.sandboxes.visible() if sandbox_view.selected(one, asked))
        return [sandbox_view.item(one) for one in found]

    def _containers(self, asked: cri.ContainerFilter) -> list[cri.Container]:
        found = (one for one in self._node.containers.visible() if view.selected(one, asked))
        return [view.item(one) for one in found]


def _event(event: Event) -> cri.ContainerEventResponse:
    return cri.ContainerEventResponse(
        container_id=event.id,
        container_event_type=event.kind,
        created_at=event.when_ns,
        pod_sandbox_status=sandbox_view.status(event.sandbox) if event.sandbox else None,
        containers_statuses=[view.status(container) for container in event.containers],
    )
