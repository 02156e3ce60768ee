"""DRAPlugin, v1 and v1beta1: an answer for each claim.  The pod shows the answer's error as its reason."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import grpc.aio

from cluster.dra import dra_metrics
from cluster.dra.claims.claim import Allocated, Allocation
from cluster.dra.claims.prepare import Claims
from daemonkit.faults import Fault, Refused
from daemonkit.logs import fields
from xenpod_proto.kubelet import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
)

log = logging.getLogger(__name__)

_MOST_CLAIMS = 1024
"""Maximum of claims in a call; a pod has at most 256 (PodSpec.resourceClaims, MaxResourceClaims)."""
_LONGEST_CHARACTERS = 1024
_CDI_KIND = "xenpod.dev/device"
"""Containers of xenpod ask for devices by these names, without a CDI specification."""


class _Plugin:
    """The calls, for the messages of one API version."""

    def __init__(self, claims: Claims, messages: ModuleType) -> None:
        self._claims = claims
        self._pb = messages

    async def NodePrepareResources(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:  # noqa: N802
        """Prepare each claim; a failed claim does not stop the rest."""
        answer = self._pb.NodePrepareResourcesResponse()
        claims = _bounded("prepare claims", request.claims)
        done = await asyncio.gather(*map(self._prepare, claims))
        for claim, (allocated, error) in zip(claims, done, strict=True):
            entry = answer.claims[claim.uid]
            entry.error = error
            if allocated is not None:
                entry.devices.extend(map(self._device, allocated.parts))
        return answer

    async def NodeUnprepareResources(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:  # noqa: N802
        """Unprepare each claim; a failed claim does not stop the rest."""
        answer = self._pb.NodeUnprepareResourcesResponse()
        claims = _bounded("unprepare claims", request.claims)
        done = await asyncio.gather(*map(self._unprepare, claims))
        for claim, error in zip(claims, done, strict=True):
            answer.claims[claim.uid].error = error
        return answer

    async def _prepare(self, claim: Any) -> tuple[Allocation | None, str]:
        try:
            with dra_metrics.measured_call("prepare"):
                return await self._claims.prepare(claim.namespace, claim.name, claim.uid), ""
        except Fault as fault:
            log.warning("%s", fault, extra=fields(uid=claim.uid))
            return None, str(fault)[:_LONGEST_CHARACTERS]

    async def _unprepare(self, claim: Any) -> str:
        try:
            with dra_metrics.measured_call("unprepare"):
                await self._claims.unprepare(claim.uid)
        except Fault as fault:
            log.warning("%s", fault, extra=fields(uid=claim.uid))
            return str(fault)[:_LONGEST_CHARACTERS]
        return ""

    def _device(self, part: Allocated) -> Any:
        device = self._pb.Device(request_names=[part.request], pool_name=part.pool, device_name=part.device)
        if part.host_device:
            device.cdi_device_ids.append(f"{_CDI_KIND}={part.host_device}")
        if part.share_id and "share_id" in device.DESCRIPTOR.fields_by_name:
            device.share_id = part.share_id
        return device


def _bounded(operation: str, claims: Iterable[Any]) -> list[Any]:
    found = {claim.uid: claim for claim in claims}
    if len(found) > _MOST_CLAIMS:
        raise Refused(operation, "", f"{len(found)} claims in one call, more than {_MOST_CLAIMS}")
    return list(found.values())


class PluginV1(_Plugin, dra_v1_pb2_grpc.DRAPluginServicer):
    """k8s.io.kubelet.pkg.apis.dra.v1."""

    def __init__(self, claims: Claims) -> None:
        super().__init__(claims, dra_v1_pb2)


class PluginV1beta1(_Plugin, dra_v1beta1_pb2_grpc.DRAPluginServicer):
    """k8s.io.kubelet.pkg.apis.dra.v1beta1."""

    def __init__(self, claims: Claims) -> None:
        super().__init__(claims, dra_v1beta1_pb2)
