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
"""As the kubelet looks for them; older ones take the second (pkg/kubelet/cm/dra/plugin)."""
_TYPE = "DRAPlugin"


class Registrar(rpc.RegistrationServicer):
    """``registered`` is told what the kubelet says of the registration: "" when it has succeeded."""

    def __init__(self, driver: str, endpoint: Path, registered: Callable[[str], None]) -> None:
        self._info = pb.PluginInfo(
            type=_TYPE, name=driver, endpoint=str(endpoint), supported_versions=VERSIONS
        )
        self._registered = registered

    async def GetInfo(  # noqa: N802
        self, request: pb.InfoRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.PluginInfo:
        """What the kubelet has found."""
        return self._info

    async def NotifyRegistrationStatus(  # noqa: N802
        self, request: pb.RegistrationStatus, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.RegistrationStatusResponse:
        """What came of the registration."""
        if request.plugin_registered:
            log.info("the kubelet has registered the driver", extra=fields(driver=self._info.name))
            self._registered("")
        else:
            cause = request.error[:300] or "the kubelet does not say why"
            log.error("the kubelet refuses the driver: %s", cause)
            self._registered(cause)
        return pb.RegistrationStatusResponse()
