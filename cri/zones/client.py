"""The client of protect.v1: each call has a deadline, and error statuses are raised as faults.

A cancelled caller cancels its call in protectd.  protectd then finishes or undoes its present step.
DestroyZone and DeleteWorkload wait there for running calls: they are safe as undo at any moment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager

import grpc.aio

from cri.zones.connection import ZoneConnection, dialled
from cri.zones.process import ProcessStreams, opened
from daemonkit.faults import Broken
from daemonkit.rpc.interceptors import fault_of
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc as rpc

_BOOT = 3600.0  # protectd ends a boot after timeouts.boot, and CRI's caller may give up earlier
_CHANGE_SECONDS = 60.0
_RESIZE_SECONDS = 120.0  # a zone has timeouts.resize for its memory, and again for its vCPUs
_READ_SECONDS = 10.0


class Zones:
    """protectd's zones, workloads and host."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._zones = rpc.ZonesStub(channel)
        self._workloads = rpc.WorkloadsStub(channel)
        self._host = rpc.HostStub(channel)

    async def create_zone(self, request: pb.CreateZoneRequest) -> pb.Zone:
        """Boot a zone and wait until its agent answers."""
        with _faults("create zone", request.id):
            return await self._zones.CreateZone(request, timeout=_BOOT)

    async def connect_network(
        self, zone_id: str, netns: str, interface: str, *, spoof_check: bool = True
    ) -> None:
        """Splice the zone's interface to CNI's."""
        request = pb.ConnectNetworkRequest(
            zone_id=zone_id, netns_path=netns, interface=interface, no_spoof_check=not spoof_check
        )
        with _faults("connect network of zone", zone_id):
            await self._zones.ConnectNetwork(request, timeout=_CHANGE_SECONDS)

    async def destroy_zone(self, zone_id: str) -> None:
        """End a zone; unknown ids succeed."""
        request = pb.DestroyZoneRequest(id=zone_id)
        with _faults("destroy zone", zone_id):
            await self._zones.DestroyZone(request, timeout=_CHANGE_SECONDS)

    async def create_workload(self, request: pb.CreateWorkloadRequest) -> pb.Workload:
        """Prepare a container in its zone."""
        with _faults("create workload", request.id):
            return await self._workloads.CreateWorkload(request, timeout=_CHANGE_SECONDS)

    async def start_workload(self, workload_id: str) -> pb.Workload:
        """Start a workload."""
        call = self._workloads.StartWorkload(pb.StartWorkloadRequest(id=workload_id), timeout=_CHANGE_SECONDS)
        with _faults("start workload", workload_id):
            return await call

    async def signal_workload(self, workload_id: str, signal: int) -> None:
        """Send a signal to a workload's first process; Refused if the process does not run."""
        request = pb.SignalWorkloadRequest(id=workload_id, signal=signal)
        with _faults("signal workload", workload_id):
            await self._workloads.SignalWorkload(request, timeout=_READ_SECONDS)

    async def wait_workload(self, workload_id: str, timeout: float) -> pb.Workload:
        """Wait until a workload has ended and its output is in the log; TooLate after ``timeout`` seconds."""
        call = self._workloads.WaitWorkload(pb.WaitWorkloadRequest(id=workload_id), timeout=timeout)
        with _faults("wait for workload", workload_id):
            return await call

    async def delete_workload(self, workload_id: str) -> None:
        """End and forget a workload; unknown ids succeed."""
        call = self._workloads.DeleteWorkload(
            pb.DeleteWorkloadRequest(id=workload_id), timeout=_CHANGE_SECONDS
        )
        with _faults("delete workload", workload_id):
            await call

    async def get_workload(self, workload_id: str) -> pb.Workload:
        """Get the present state of a workload."""
        call = self._workloads.GetWorkload(pb.GetWorkloadRequest(id=workload_id), timeout=_READ_SECONDS)
        with _faults("get workload", workload_id):
            return await call

    async def workload_stats(self, ids: Iterable[str]) -> list[pb.WorkloadStatsRow]:
        """Get statistics of these workloads, or of all if empty."""
        request = pb.WorkloadStatsRequest(ids=ids)
        with _faults("read stats", ""):
            reply = await self._workloads.WorkloadStats(request, timeout=_READ_SECONDS)
        return list(reply.rows)

    async def zone_stats(self, ids: Iterable[str], *, details: bool) -> list[pb.ZoneStatsRow]:
        """Statistics of these zones and their workloads, or of all if empty; silent zones are left out."""
        request = pb.ZoneStatsRequest(ids=ids, details=details)
        with _faults("read stats of", "zones"):
            reply = await self._zones.ZoneStats(request, timeout=_READ_SECONDS)
        return list(reply.rows)

    async def resize_zone(
        self, zone_id: str, resources: pb.ZoneResources, *, only_more: bool = False
    ) -> list[str]:
        """Resize a zone; returns a sentence for each failed part."""
        request = pb.ResizeZoneRequest(id=zone_id, resources=resources, only_more=only_more)
        with _faults("resize zone", zone_id):
            reply = await self._zones.ResizeZone(request, timeout=_RESIZE_SECONDS)
        return list(reply.not_done)

    async def update_workload(self, workload_id: str, resources: bytes) -> None:
        """Change limits.  ``resources``: OCI ``linux.resources``, JSON; missing limits stay."""
        request = pb.UpdateWorkloadRequest(id=workload_id, resources=resources)
        call = self._workloads.UpdateWorkload(request, timeout=_CHANGE_SECONDS)
        with _faults("update workload", workload_id):
            await call

    async def reopen_log(self, workload_id: str) -> None:
        """Open a workload's log file again after a rename."""
        call = self._workloads.ReopenLog(pb.ReopenLogRequest(id=workload_id), timeout=_READ_SECONDS)
        with _faults("reopen log", workload_id):
            await call

    async def exec(self, start: pb.ExecStart) -> AsyncIterator[pb.ExecOutput]:
        """Run a process without standard input; yields its output, and its exit as the last item.

        Giving up the iteration kills the process.
        """
        call = self._workloads.Exec(_only(pb.ExecInput(start=start)))
        exited = False
        try:
            async for output in call:
                exited = output.HasField("exit")
                yield output
        except grpc.aio.AioRpcError as error:
            raise fault_of(error, "exec in", start.workload_id) from None
        finally:
            call.cancel()
        if not exited:
            raise Broken("exec in", start.workload_id, "protectd ended the stream without an exit code")

    def open_exec(self, start: pb.ExecStart) -> AbstractAsyncContextManager[ProcessStreams[pb.ExecInput]]:
        """Run a process with its standard streams; the end of the block kills the process."""
        call = self._workloads.Exec(None)  # written to, message by message
        return opened(call, pb.ExecInput(start=start), "exec in", start.workload_id)

    def open_attach(
        self, start: pb.AttachStart
    ) -> AbstractAsyncContextManager[ProcessStreams[pb.AttachInput]]:
        """Attach to the standard streams of a workload's first process, from now on."""
        call = self._workloads.Attach(None)  # as above
        return opened(call, pb.AttachInput(start=start), "attach to", start.workload_id)

    def dial(self, zone_id: str, port: int) -> AbstractAsyncContextManager[ZoneConnection]:
        """Connect to a port of the zone's loopback for the time of the block; Refused: no listener."""
        return dialled(self._zones.Dial(None), pb.DialStart(zone_id=zone_id, port=port))

    async def info(self, seclabels: Sequence[str] = ()) -> pb.InfoResponse:
        """Get facts about the host, including the unknown ones of these labels."""
        with _faults("ask protectd about", "the host"):
            return await self._host.Info(pb.InfoRequest(seclabels=seclabels), timeout=_READ_SECONDS)

    async def watch(self) -> AsyncIterator[pb.WatchEvent]:
        """Yield everything present, SYNCED, then changes.  Waits for protectd; Unreachable: protectd went."""
        call = self._host.Watch(pb.WatchRequest(), wait_for_ready=True)
        try:
            async for event in call:
                yield event
        except grpc.aio.AioRpcError as error:
            raise fault_of(error, "watch", "protectd") from None
        finally:
            call.cancel()


async def _only(item: pb.ExecInput) -> AsyncIterator[pb.ExecInput]:
    yield item


@contextmanager
def _faults(operation: str, subject: str) -> Iterator[None]:
    """Raise protectd's statuses as our faults."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise fault_of(error, operation, subject) from None
