"""The gRPC service RuntimeService.  Each RPC calls its verb."""

from __future__ import annotations

from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import grpc.aio

from cri.container.reopen_log import reopen_log
from cri.rpc.listing import ListingRpcs
from cri.rpc.pod_cidr import PodCidr
from cri.rpc.resources import ResourcesRpcs
from cri.rpc.statistics import StatisticsRpcs
from cri.rpc.status import NodeStatus
from cri.rpc.verbs import ContainerVerbs, PodVerbs
from cri.state.container_events import Events
from cri.state.pod_records import PodRecords
from cri.stats.pods import PodStatistics
from cri.streaming.forwarding.portforward import port_forward_url
from cri.streaming.process.exec import attach_url, exec_url
from cri.streaming.server import Server
from cri.zones.client import Zones
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
    """``runtime.v1.RuntimeService``; exec, attach and port-forward lead to ``streaming``."""

    def __init__(
        self,
        pods: PodVerbs,
        containers: ContainerVerbs,
        *,
        records: PodRecords,
        zones: Zones,
        events: Events,
        status: NodeStatus,
        pod_cidr: PodCidr,
        statistics: PodStatistics,
        streaming: Server,
    ) -> None:
        ListingRpcs.__init__(self, records, events)
        StatisticsRpcs.__init__(self, records, zones, statistics)
        ResourcesRpcs.__init__(self, containers.update, pods.update, pod_cidr)
        self._run_pod, self._stop_pod, self._remove_pod = pods.run, pods.stop, pods.remove
        self._create_container, self._start_container = containers.create, containers.start
        self._stop_container, self._remove_container = containers.stop, containers.remove
        self._exec_sync = containers.exec_sync
        self._status = status
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
        return await self._status.status(request.verbose)

    @read_only
    async def RuntimeConfig(
        self, request: cri.RuntimeConfigRequest, context: _Context
    ) -> cri.RuntimeConfigResponse:
        linux = cri.LinuxRuntimeConfiguration(cgroup_driver=_cgroup_driver())
        return cri.RuntimeConfigResponse(linux=linux)

    async def RunPodSandbox(
        self, request: cri.RunPodSandboxRequest, context: _Context
    ) -> cri.RunPodSandboxResponse:
        return cri.RunPodSandboxResponse(pod_sandbox_id=await self._run_pod.run(request))

    async def StopPodSandbox(
        self, request: cri.StopPodSandboxRequest, context: _Context
    ) -> cri.StopPodSandboxResponse:
        await self._stop_pod.stop(request.pod_sandbox_id)
        return cri.StopPodSandboxResponse()

    async def RemovePodSandbox(
        self, request: cri.RemovePodSandboxRequest, context: _Context
    ) -> cri.RemovePodSandboxResponse:
        await self._remove_pod.remove(request.pod_sandbox_id)
        return cri.RemovePodSandboxResponse()

    async def CreateContainer(
        self, request: cri.CreateContainerRequest, context: _Context
    ) -> cri.CreateContainerResponse:
        return cri.CreateContainerResponse(container_id=await self._create_container.create(request))

    async def StartContainer(
        self, request: cri.StartContainerRequest, context: _Context
    ) -> cri.StartContainerResponse:
        await self._start_container.start(request.container_id)
        return cri.StartContainerResponse()

    async def StopContainer(
        self, request: cri.StopContainerRequest, context: _Context
    ) -> cri.StopContainerResponse:
        await self._stop_container.stop(request.container_id, request.timeout)
        return cri.StopContainerResponse()

    async def RemoveContainer(
        self, request: cri.RemoveContainerRequest, context: _Context
    ) -> cri.RemoveContainerResponse:
        await self._remove_container.remove(request.container_id)
        return cri.RemoveContainerResponse()

    async def ReopenContainerLog(
        self, request: cri.ReopenContainerLogRequest, context: _Context
    ) -> cri.ReopenContainerLogResponse:
        await reopen_log(self._records.containers, self._zones, request.container_id)
        return cri.ReopenContainerLogResponse()

    async def ExecSync(  # type: ignore[override]  # the reply is encoded already, see daemonkit.rpc
        self, request: cri.ExecSyncRequest, context: _Context
    ) -> bytes:
        until_sent = ExitStack()
        # Also if the client has gone: work still under way gets no memory any more.
        context.add_done_callback(lambda _: until_sent.close())  # type: ignore[arg-type]  # in the stubs it is no protocol
        return await self._exec_sync.exec_sync(request, until_sent)

    async def Exec(self, request: cri.ExecRequest, context: _Context) -> cri.ExecResponse:
        return cri.ExecResponse(url=exec_url(self._records, self._zones, self._streaming, request))

    async def Attach(self, request: cri.AttachRequest, context: _Context) -> cri.AttachResponse:
        return cri.AttachResponse(url=attach_url(self._records, self._zones, self._streaming, request))

    async def PortForward(
        self, request: cri.PortForwardRequest, context: _Context
    ) -> cri.PortForwardResponse:
        url = port_forward_url(self._records.sandboxes, self._zones, self._streaming, request)
        return cri.PortForwardResponse(url=url)


def _cgroup_driver() -> cri.CgroupDriver.ValueType:
    """The cgroup driver of this host (sd_booted(3)); the cgroups of pods are inside their zones."""
    return cri.SYSTEMD if _SYSTEMD.is_dir() else cri.CGROUPFS
