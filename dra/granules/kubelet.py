"""What the kubelet is told, and asked: the plugin's registration, and which containers have granules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from daemonkit.grpc_server import channel
from daemonkit.interceptors import fault_of
from xenpod_proto.kubelet import (
    deviceplugin_pb2,
    deviceplugin_pb2_grpc,
    podresources_pb2,
    podresources_pb2_grpc,
)

_VERSION = "v1beta1"
_SOCKET = "kubelet.sock"
_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Holder:
    """A container's pod, and the granules that the container has."""

    namespace: str
    pod: str
    granules: tuple[str, ...]


class Kubelet:
    """The kubelet of this node.  All methods raise the faults of its answers, or Unreachable."""

    def __init__(self, plugins_dir: Path, pod_resources: Path, resource: str) -> None:
        self._plugins_dir = plugins_dir
        self._pod_resources = pod_resources
        self._resource = resource

    async def register(self, endpoint: str) -> None:
        """Have it use the plugin whose socket has this name; it calls the plugin before it answers."""
        request = deviceplugin_pb2.RegisterRequest(
            version=_VERSION, endpoint=endpoint, resource_name=self._resource
        )
        with _faults("register", self._resource):
            async with channel(self._plugins_dir / _SOCKET) as link:
                await deviceplugin_pb2_grpc.RegistrationStub(link).Register(request, timeout=_TIMEOUT)

    async def holders(self) -> list[Holder]:
        """The containers that have granules, of pods that have not ended."""
        with _faults("list resources of", "pods"):
            async with channel(self._pod_resources) as link:
                stub = podresources_pb2_grpc.PodResourcesListerStub(link)
                answer = await stub.List(podresources_pb2.ListPodResourcesRequest(), timeout=_TIMEOUT)
        return [
            Holder(pod.namespace, pod.name, names)
            for pod in answer.pod_resources
            for container in pod.containers
            if (names := self._granules(container))
        ]

    def _granules(self, container: podresources_pb2.ContainerResources) -> tuple[str, ...]:
        """The kubelet lists devices of one resource by NUMA node, so there may be several lists."""
        ours = (one.device_ids for one in container.devices if one.resource_name == self._resource)
        return tuple(name for names in ours for name in names)


@contextmanager
def _faults(operation: str, subject: str) -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise fault_of(error, operation, subject) from error
