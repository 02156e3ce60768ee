"""RPCs that change limits and the runtime's own settings."""

from __future__ import annotations

import grpc.aio

from cri.container.update import UpdateContainer
from cri.rpc.pod_cidr import PodCidr
from cri.sandbox.update import UpdateSandbox
from daemonkit.faults import Unsupported
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_Context = grpc.aio.ServicerContext[object, object]


class ResourcesRpcs:
    """The methods of RuntimeService that change resources and settings."""

    def __init__(
        self, update_container: UpdateContainer, update_pod: UpdateSandbox, pod_cidr: PodCidr
    ) -> None:
        self._update_container = update_container
        self._update_pod = update_pod
        self._pod_cidr = pod_cidr

    async def UpdateContainerResources(
        self, request: cri.UpdateContainerResourcesRequest, context: _Context
    ) -> cri.UpdateContainerResourcesResponse:
        await self._update_container.update(request)
        return cri.UpdateContainerResourcesResponse()

    async def UpdatePodSandboxResources(
        self, request: cri.UpdatePodSandboxResourcesRequest, context: _Context
    ) -> cri.UpdatePodSandboxResourcesResponse:
        await self._update_pod.update(request)
        return cri.UpdatePodSandboxResourcesResponse()

    async def UpdateRuntimeConfig(
        self, request: cri.UpdateRuntimeConfigRequest, context: _Context
    ) -> cri.UpdateRuntimeConfigResponse:
        cidr = request.runtime_config.network_config.pod_cidr
        if cidr:
            await self._pod_cidr.receive(cidr)
        return cri.UpdateRuntimeConfigResponse()

    async def CheckpointContainer(
        self, request: cri.CheckpointContainerRequest, context: _Context
    ) -> cri.CheckpointContainerResponse:
        cause = "a container's processes live in its zone's kernel, which has no means to save them to a file"
        raise Unsupported("CheckpointContainer", request.container_id[:64], cause)
