"""The kubelet's side of a DRA driver: plugin folders, and the kubelet's calls."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from cluster.dra.config import DraConfig
from daemonkit.rpc.channels import channel
from xenpod_proto.kubelet import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    health_v1_pb2,
    health_v1_pb2_grpc,
    health_v1alpha1_pb2,
    health_v1alpha1_pb2_grpc,
    registration_pb2,
    registration_pb2_grpc,
)

TIMEOUT = 60.0
HEALTHS = {
    "v1": (health_v1_pb2, health_v1_pb2_grpc),
    "v1alpha1": (health_v1alpha1_pb2, health_v1alpha1_pb2_grpc),
}
VERSIONS = {"v1": (dra_v1_pb2, dra_v1_pb2_grpc), "v1beta1": (dra_v1beta1_pb2, dra_v1beta1_pb2_grpc)}


@dataclass(frozen=True)
class DraKubelet:
    """``info``: the driver's data about itself."""

    info: registration_pb2.PluginInfo
    registration: registration_pb2_grpc.RegistrationAsyncStub
    _plugins: dict[str, Any]
    _healths: dict[str, Any]

    async def registered(self, error: str = "") -> None:
        request = registration_pb2.RegistrationStatus(plugin_registered=not error, error=error)
        await self.registration.NotifyRegistrationStatus(request, timeout=TIMEOUT)

    async def prepare(self, *claims: tuple[str, str], version: str = "v1") -> Any:
        """Claims by name and uid: the answers by uid."""
        request = VERSIONS[version][0].NodePrepareResourcesRequest(claims=self._claims(claims, version))
        return (await self._plugins[version].NodePrepareResources(request, timeout=TIMEOUT)).claims

    async def unprepare(self, *claims: tuple[str, str], version: str = "v1") -> Any:
        request = VERSIONS[version][0].NodeUnprepareResourcesRequest(claims=self._claims(claims, version))
        return (await self._plugins[version].NodeUnprepareResources(request, timeout=TIMEOUT)).claims

    def health(self, version: str) -> Any:
        """The stream of the devices' states."""
        return self._healths[version].NodeWatchResources(HEALTHS[version][0].NodeWatchResourcesRequest())

    @staticmethod
    def _claims(claims: tuple[tuple[str, str], ...], version: str) -> list[Any]:
        make = VERSIONS[version][0].Claim
        return [make(namespace="default", name=name, uid=uid) for name, uid in claims]


@contextlib.asynccontextmanager
async def kubelet(config: DraConfig) -> AsyncIterator[DraKubelet]:
    """Find the driver as the kubelet does: the socket in the registry names the driver's socket."""
    async with channel(config.registration_socket) as found:
        registration = registration_pb2_grpc.RegistrationStub(found)
        info = await registration.GetInfo(
            registration_pb2.InfoRequest(), timeout=TIMEOUT, wait_for_ready=True
        )
        async with channel(config.plugin_socket) as link:
            plugins = {version: rpc.DRAPluginStub(link) for version, (_, rpc) in VERSIONS.items()}
            healths = {version: rpc.DRAResourceHealthStub(link) for version, (_, rpc) in HEALTHS.items()}
            yield DraKubelet(info, registration, plugins, healths)
