"""Registration: tells the kubelet the driver's name, socket and versions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.aio

from daemonkit.logs import fields
from xenpod_proto.kubelet import registration_pb2 as pb
from xenpod_proto.kubelet import registration_pb2_grpc as rpc

log = logging.getLogger(__name__)

VERSIONS = (
    "v1.DRAPlugin",
    "v1beta1.DRAPlugin",
    "v1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",
)
"""In the kubelet's order of search; older kubelets take the second (pkg/kubelet/cm/dra/plugin)."""
_TYPE = "DRAPlugin"


class Registrar(rpc.RegistrationServicer):
    """``registered`` gets the kubelet's error of the registration, or "" after success."""

    def __init__(self, driver: str, endpoint: Path, registered: Callable[[str], None]) -> None:
        self._info = pb.PluginInfo(
            type=_TYPE, name=driver, endpoint=str(endpoint), supported_versions=VERSIONS
        )
        self._registered = registered

    async def GetInfo(  # noqa: N802
        self, request: pb.InfoRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.PluginInfo:
        """The plugin's identity, for the kubelet."""
        return self._info

    async def NotifyRegistrationStatus(  # noqa: N802
        self, request: pb.RegistrationStatus, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.RegistrationStatusResponse:
        """Take the result of the registration."""
        if request.plugin_registered:
            log.info("the kubelet has registered the driver", extra=fields(driver=self._info.name))
            self._registered("")
        else:
            cause = request.error[:300] or "the kubelet does not say why"
            log.error("the kubelet refuses the driver: %s", cause)
            self._registered(cause)
        return pb.RegistrationStatusResponse()
