"""RPCs that change limits and the runtime's own settings."""

from __future__ import annotations

import logging

import grpc.aio

from cri.cni import template
from cri.container import update
from cri.runtime import Runtime
from cri.sandbox import update as sandbox_update
from daemonkit.faults import Fault, Unsupported
from daemonkit.logs import fields
from xenpod_proto.cri.v1 import runtime_pb2 as cri

log = logging.getLogger(__name__)

_Context = grpc.aio.ServicerContext[object, object]


class ResourcesRpcs:
    """The methods of RuntimeService that change resources and settings."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def UpdateContainerResources(
        self, request: cri.UpdateContainerResourcesRequest, context: _Context
    ) -> cri.UpdateContainerResourcesResponse:
        await update.update(self._runtime, request)
        return cri.UpdateContainerResourcesResponse()

    async def UpdatePodSandboxResources(
        self, request: cri.UpdatePodSandboxResourcesRequest, context: _Context
    ) -> cri.UpdatePodSandboxResourcesResponse:
        await sandbox_update.update(self._runtime, request)
        return cri.UpdatePodSandboxResourcesResponse()

    async def UpdateRuntimeConfig(
        self, request: cri.UpdateRuntimeConfigRequest, context: _Context
    ) -> cri.UpdateRuntimeConfigResponse:
        """Fill the template in with the pod CIDR, unless a network configuration exists already."""
        cidr = request.runtime_config.network_config.pod_cidr
        if cidr:
            await self._pod_cidr(cidr)
        return cri.UpdateRuntimeConfigResponse()

    async def CheckpointContainer(
        self, request: cri.CheckpointContainerRequest, context: _Context
    ) -> cri.CheckpointContainerResponse:
        cause = "a container's processes live in its zone's kernel, which has no means to save them to a file"
        raise Unsupported("CheckpointContainer", request.container_id[:64], cause)

    async def _pod_cidr(self, cidr: str) -> None:
        runtime = self._runtime
        networks = template.networks(cidr)
        runtime.kubelet.pod_cidr = cidr
        if runtime.config.cni.conf_template is None:
            log.info("pod CIDR received; CNI's own configuration decides", extra=fields(cidr=cidr))
            return
        try:
            chain = runtime.network.check()
        except Fault:
            source, directory = runtime.config.cni.conf_template, runtime.config.cni.conf_dir
            path = await template.write(source, directory, networks)
            log.info("network configuration written", extra=fields(cidr=cidr, path=path))
        else:
            log.info(
                "pod CIDR received; a network is configured", extra=fields(cidr=cidr, network=chain.name)
            )
