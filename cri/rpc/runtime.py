"""The gRPC service RuntimeService.  Each RPC calls its verb."""

from __future__ import annotations

from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import grpc.aio

from cri.container import create, execsync, logs, remove, start, stop
from cri.rpc import status
from cri.rpc.listing import ListingRpcs
from cri.rpc.resources import ResourcesRpcs
from cri.rpc.statistics import StatisticsRpcs
from cri.runtime import Runtime
from cri.sandbox import remove as sandbox_remove
from cri.sandbox import run as sandbox_run
from cri.sandbox import stop as sandbox_stop
from cri.stats.rates import Rates
from cri.streaming.forwarding.portforward import port_forward_url
from cri.streaming.process.exec import attach_url, exec_url
from cri.streaming.server import Server
from daemonkit.rpc.interceptors import read_only
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.cri.v1 import runtime_pb2_grpc as rpc

NAME = "xenpod"
API_VERSION = "v1"
_VERSION = version("xenpod")  # reads files: once
_SYSTEMD = Path("/run/systemd/system")
KUBE_API_VERSION = "0.1.0"  # VersionResponse.version: the kubelet's runtime API, fixed since its beginning

_Context = grpc.aio.ServicerContext[object, object]


class RuntimeService(ListingRpcs, StatisticsRpcs, ResourcesRpcs, rpc.RuntimeServiceServicer):
    """``runtime.v1.RuntimeService`` over ``runtime``; exec, attach and port-forward lead to ``streaming``."""

    def __init__(self, runtime: Runtime, streaming: Server, rates: Rates) -> None:
        ListingRpcs.__init__(self, runtime)
        StatisticsRpcs.__init__(self, runtime, rates)
        self._streaming = streaming

    @read_only
    async def Version(self, request: cri.VersionRequest, context: _Context) -> cri.VersionResponse:
        return cri.VersionResponse(
            version=KUBE_API_VERSION,
            runtime_name=NAME,
            runtime_version=_VERSION,
            runtime_api_version=API_VERSION,
        )

    @read_only
    async def Status(self, request: cri.StatusRequest, context: _Context) -> cri.StatusResponse:
        return await status.status(self._runtime, request.verbose)

    @read_only
    async def RuntimeConfig(
        self, request: cri.RuntimeConfigRequest, context: _Context
    ) -> cri.RuntimeConfigResponse:
        linux = cri.LinuxRuntimeConfiguration(cgroup_driver=_cgroup_driver())
        return cri.RuntimeConfigResponse(linux=linux)

    async def RunPodSandbox(
        self, request: cri.RunPodSandboxRequest, context: _Context
    ) -> cri.RunPodSandboxResponse:
        return cri.RunPodSandboxResponse(pod_sandbox_id=await sandbox_run.run(self._runtime, request))

    async def StopPodSandbox(
        self, request: cri.StopPodSandboxRequest, context: _Context
    ) -> cri.StopPodSandboxResponse:
        await sandbox_stop.stop(self._runtime, request.pod_sandbox_id)
        return cri.StopPodSandboxResponse()

    async def RemovePodSandbox(
        self, request: cri.RemovePodSandboxRequest, context: _Context
    ) -> cri.RemovePodSandboxResponse:
        await sandbox_remove.remove(self._runtime, request.pod_sandbox_id)
        return cri.RemovePodSandboxResponse()

    async def CreateContainer(
        self, request: cri.CreateContainerRequest, context: _Context
    ) -> cri.CreateContainerResponse:
        return cri.CreateContainerResponse(container_id=await create.create(self._runtime, request))

    async def StartContainer(
        self, request: cri.StartContainerRequest, context: _Context
    ) -> cri.StartContainerResponse:
        await start.start(self._runtime, request.container_id)
        return cri.StartContainerResponse()

    async def StopContainer(
        self, request: cri.StopContainerRequest, context: _Context
    ) -> cri.StopContainerResponse:
        await stop.stop(self._runtime, request.container_id, request.timeout)
        return cri.StopContainerResponse()

    async def RemoveContainer(
        self, request: cri.RemoveContainerRequest, context: _Context
    ) -> cri.RemoveContainerResponse:
        await remove.remove(self._runtime, request.container_id)
        return cri.RemoveContainerResponse()

    async def ReopenContainerLog(
        self, request: cri.ReopenContainerLogRequest, context: _Context
    ) -> cri.ReopenContainerLogResponse:
        await logs.reopen(self._runtime, request.container_id)
        return cri.ReopenContainerLogResponse()

    async def ExecSync(  # type: ignore[override]  # the reply is encoded already, see daemonkit.rpc
        self, request: cri.ExecSyncRequest, context: _Context
    ) -> bytes:
        until_sent = ExitStack()
        # Also if the client has gone: work still under way gets no memory any more.
        context.add_done_callback(lambda _: until_sent.close())  # type: ignore[arg-type]  # in the stubs it is no protocol
        return await execsync.exec_sync(self._runtime, request, until_sent)

    async def Exec(self, request: cri.ExecRequest, context: _Context) -> cri.ExecResponse:
        return cri.ExecResponse(url=exec_url(self._runtime, self._streaming, request))

    async def Attach(self, request: cri.AttachRequest, context: _Context) -> cri.AttachResponse:
        return cri.AttachResponse(url=attach_url(self._runtime, self._streaming, request))

    async def PortForward(
        self, request: cri.PortForwardRequest, context: _Context
    ) -> cri.PortForwardResponse:
        return cri.PortForwardResponse(url=port_forward_url(self._runtime, self._streaming, request))


def _cgroup_driver() -> cri.CgroupDriver.ValueType:
    """The cgroup driver of this host (sd_booted(3)); the cgroups of pods are inside their zones."""
    return cri.SYSTEMD if _SYSTEMD.is_dir() else cri.CGROUPFS
