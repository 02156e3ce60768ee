"""Asks xenpod-cri for its Status over CRI."""

from __future__ import annotations

from pathlib import Path

import grpc.aio

from cluster.labeller.labels import Labels, labels_of
from daemonkit.faults import Unreachable
from daemonkit.rpc.channels import channel
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.cri.v1 import runtime_pb2_grpc

_TIMEOUT_SECONDS = 30.0


async def read_labels(socket: Path) -> Labels:
    """Labels for the node's present capabilities.  Unreachable: no answer of xenpod-cri or protectd."""
    async with channel(socket) as link:
        try:
            request = cri.StatusRequest(verbose=True)
            status = await runtime_pb2_grpc.RuntimeServiceStub(link).Status(request, timeout=_TIMEOUT_SECONDS)
        except grpc.aio.AioRpcError as error:
            cause = f"{(error.details() or '')[:300]} [{error.code().name}]"
            hint = "xenpod-cri serves it"
            raise Unreachable("ask for the status at", str(socket), cause, hint) from error
    return labels_of(status)
