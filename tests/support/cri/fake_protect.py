"""protect.v1 in memory: zones that boot at once, workloads that run until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from daemonkit.faults import Exhausted, Fault, Missing, Refused
from daemonkit.rpc.server import serve_unix
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc as rpc

KILL = 9


class FakeProtect(rpc.ZonesServicer, rpc.WorkloadsServicer, rpc.HostServicer):
    """A servicer for all three services; refuses the same requests as protectd."""

    def __init__(self) -> None:
        self.zones: dict[str, pb.Zone] = {}
        self.zone_requests: dict[str, pb.CreateZoneRequest] = {}
        self.workloads: dict[str, pb.Workload] = {}
        self.requests: dict[str, pb.CreateWorkloadRequest] = {}
        self.networks: dict[str, pb.ConnectNetworkRequest] = {}
        self.signals: list[tuple[str, int]] = []
        self.execs: list[pb.ExecStart] = []
        self.user_namespaces = True
        self.selinux = False
        self.exec_outputs: list[pb.ExecOutput] = [pb.ExecOutput(exit=pb.ProcessExit(exit_code=0))]
        self.calls: list[str] = []
        self.failures: dict[str, Fault] = {}
        """Faults by RPC name, raised before anything is done, until they are removed."""
        self.late_failures: dict[str, Fault] = {}
        """Faults by RPC name, raised after the work is done."""
        self.stalls: dict[str, asyncio.Event] = {}
        """Events by RPC name; the RPC first waits for its event."""
        self.ignored_signals: set[int] = set()
        self.zone_stats = pb.ZoneStatsRow()
        """The statistics of each zone."""
        self.workload_stats = pb.WorkloadStatsRow(cpu_usage_ns=5_000_000, pids_current=2)
        self.bounds: list[pb.ProfileBounds] = []
        self.preflight: list[pb.HostNotice] = []
        self.capabilities: pb.HostCapabilities | None = pb.HostCapabilities(pv=True)
        """None: protectd does not say."""
        self.seclabels: set[str] = set()
        """Labels of the hypervisor's policy."""
        self.silent: set[str] = set()
        """Zones that do not answer calls for statistics."""
        self.stats_requests: list[pb.ZoneStatsRequest] = []
        self.anonymous_volumes = True
        """Whether the agents of new zones support anonymous volumes."""
        self.resizes: list[pb.ResizeZoneRequest] = []
        self.not_done: list[str] = []
        self.updates: list[pb.UpdateWorkloadRequest] = []
        self.refused_limit = ""
        self.changed = asyncio.Condition()
        self._watchers: set[asyncio.Queue[pb.WatchEvent]] = set()

    async def _enter(self, name: str) -> None:
        self.calls.append(name)
        if name in self.stalls:
            await self.stalls[name].wait()
        if name in self.failures:
            raise self.failures[name]

    def _leave(self, name: str) -> None:
        if name in self.late_failures:
            raise self.late_failures[name]

    async def tell(self, event: pb.WatchEvent) -> None:
        for queue in self._watchers:
            queue.put_nowait(event)
        async with self.changed:
            self.changed.notify_all()

    def _zone(self, zone_id: str) -> pb.Zone:
        if zone_id not in self.zones:
            raise Missing("find zone", zone_id, "no such zone")
        return self.zones[zone_id]

    def _workload(self, workload_id: str) -> pb.Workload:
        if workload_id not in self.workloads:
            raise Missing("find workload", workload_id, "no such workload")
        return self.workloads[workload_id]

    def end_watches(self) -> None:
        """End every stream of changes, as when protectd restarts."""
        for queue in self._watchers:
            queue.put_nowait(pb.WatchEvent())

    # zones

    async def CreateZone(self, request: pb.CreateZoneRequest, context: Any) -> pb.Zone:
        await self._enter("CreateZone")
        if request.resources.memory_bytes > 2**40:
            raise Exhausted("reserve memory for zone", request.id, "more than there is")
        zone = pb.Zone(
            id=request.id,
            name=request.name,
            state=pb.ZONE_STATE_RUNNING,
            toolstack="fake",
            anonymous_volumes=self.anonymous_volumes,
        )
        self.zone_requests[request.id] = request
        self.zones[request.id] = zone
        await self.tell(pb.WatchEvent(zone=zone))
        self._leave("CreateZone")
        return zone

    async def ConnectNetwork(
        self, request: pb.ConnectNetworkRequest, context: Any
    ) -> pb.ConnectNetworkResponse:
        await self._enter("ConnectNetwork")
        self._zone(request.zone_id)
        self.networks[request.zone_id] = request
        return pb.ConnectNetworkResponse()

    async def DestroyZone(self, request: pb.DestroyZoneRequest, context: Any) -> pb.DestroyZoneResponse:
        await self._enter("DestroyZone")
        for workload in [w for w in self.workloads.values() if w.zone_id == request.id]:
            del self.workloads[workload.id]
            await self.tell(pb.WatchEvent(workload_gone=workload.id))
        if self.zones.pop(request.id, None):
            await self.tell(pb.WatchEvent(zone_gone=request.id))
        return pb.DestroyZoneResponse()

    async def crash_zone(self, zone_id: str, reason: str, *, told: bool = True) -> None:
        """Let the zone die by itself; ``told``: who watches is told of its workloads first."""
        zone = self._zone(zone_id)
        for workload in self.workloads.values() if told else ():
            if workload.zone_id == zone_id and workload.state != pb.WORKLOAD_STATE_EXITED:
                await self.exit(workload.id, 255, "ZoneKernelPanic")
        zone.state, zone.death_reason = pb.ZONE_STATE_DEAD, reason
        zone.death_kind, zone.console = "KernelPanic", "one\ntwo"
        await self.tell(pb.WatchEvent(zone=zone))

    # workloads

    async def CreateWorkload(self, request: pb.CreateWorkloadRequest, context: Any) -> pb.Workload:
        await self._enter("CreateWorkload")
        self._zone(request.zone_id)
        self.requests[request.id] = request
        workload = pb.Workload(id=request.id, zone_id=request.zone_id, state=pb.WORKLOAD_STATE_CREATED)
        workload.created_at_ns = time.time_ns()
        self.workloads[request.id] = workload
        await self.tell(pb.WatchEvent(workload=workload))
        self._leave("CreateWorkload")
        return workload

    async def StartWorkload(self, request: pb.StartWorkloadRequest, context: Any) -> pb.Workload:
        await self._enter("StartWorkload")
        workload = self._workload(request.id)
        if workload.state != pb.WORKLOAD_STATE_CREATED:
            raise Refused("start workload", request.id, "not created")
        workload.state, workload.started_at_ns = pb.WORKLOAD_STATE_RUNNING, time.time_ns()
        await self.tell(pb.WatchEvent(workload=workload))
        self._leave("StartWorkload")
        return workload

    async def SignalWorkload(
        self, request: pb.SignalWorkloadRequest, context: Any
    ) -> pb.SignalWorkloadResponse:
        await self._enter("SignalWorkload")
        workload = self._workload(request.id)
        if workload.state != pb.WORKLOAD_STATE_RUNNING:
            raise Refused("signal workload", request.id, "it does not run")
        self.signals.append((request.id, request.signal))
        if request.signal not in self.ignored_signals:
            await self.exit(request.id, 128 + request.signal, "Error")
        return pb.SignalWorkloadResponse()

    async def exit(self, workload_id: str, code: int, reason: str) -> None:
        """End the workload."""
        workload = self._workload(workload_id)
        workload.state, workload.finished_at_ns = pb.WORKLOAD_STATE_EXITED, time.time_ns()
        workload.exit_code, workload.reason = code, reason
        await self.tell(pb.WatchEvent(workload=workload))

    async def WaitWorkload(self, request: pb.WaitWorkloadRequest, context: Any) -> pb.Workload:
        await self._enter("WaitWorkload")
        async with self.changed:
            await self.changed.wait_for(lambda: self._workload(request.id).state == pb.WORKLOAD_STATE_EXITED)
        return self._workload(request.id)

    async def DeleteWorkload(
        self, request: pb.DeleteWorkloadRequest, context: Any
    ) -> pb.DeleteWorkloadResponse:
        await self._enter("DeleteWorkload")
        if self.workloads.pop(request.id, None):
            await self.tell(pb.WatchEvent(workload_gone=request.id))
        return pb.DeleteWorkloadResponse()

    async def GetWorkload(self, request: pb.GetWorkloadRequest, context: Any) -> pb.Workload:
        return self._workload(request.id)

    async def Exec(self, requests: AsyncIterator[pb.ExecInput], context: Any) -> AsyncIterator[pb.ExecOutput]:
        await self._enter("Exec")
        async for request in requests:
            self.execs.append(request.start)
            break
        for output in self.exec_outputs:
            if output.HasField("exit"):
                await self._enter("ExecEnd")
            yield output
        self._leave("Exec")

    async def WorkloadStats(self, request: pb.WorkloadStatsRequest, context: Any) -> pb.WorkloadStatsResponse:
        await self._enter("WorkloadStats")
        rows = [
            pb.WorkloadStatsRow(
                id=workload.id,
                zone_id=workload.zone_id,
                timestamp_ns=time.time_ns(),
                cpu_usage_ns=5_000_000,
                memory_working_set_bytes=4096,
                memory_limit_bytes=8192,
            )
            for workload in self.workloads.values()
            if not request.ids or workload.id in request.ids
        ]
        return pb.WorkloadStatsResponse(rows=rows)

    async def ZoneStats(self, request: pb.ZoneStatsRequest, context: Any) -> pb.ZoneStatsResponse:
        await self._enter("ZoneStats")
        self.stats_requests.append(request)
        rows = []
        for zone in self.zones.values():
            if zone.state == pb.ZONE_STATE_RUNNING and (not request.ids or zone.id in request.ids):
                row = pb.ZoneStatsRow()
                row.CopyFrom(self.zone_stats)
                row.zone_id, row.timestamp_ns = zone.id, time.time_ns()
                for workload in self.workloads.values():
                    if workload.zone_id == zone.id and workload.state != pb.WORKLOAD_STATE_EXITED:
                        one = row.workloads.add()
                        one.CopyFrom(self.workload_stats)
                        one.id, one.zone_id, one.timestamp_ns = workload.id, zone.id, row.timestamp_ns
                rows.append(row)
        return pb.ZoneStatsResponse(rows=[row for row in rows if row.zone_id not in self.silent])

    async def ResizeZone(self, request: pb.ResizeZoneRequest, context: Any) -> pb.ResizeZoneResponse:
        await self._enter("ResizeZone")
        self.resizes.append(request)
        return pb.ResizeZoneResponse(zone=self._zone(request.id), not_done=self.not_done)

    async def UpdateWorkload(
        self, request: pb.UpdateWorkloadRequest, context: Any
    ) -> pb.UpdateWorkloadResponse:
        await self._enter("UpdateWorkload")
        if self._workload(request.id).state == pb.WORKLOAD_STATE_EXITED:
            raise Refused("update workload", request.id, "it has ended")
        if self.refused_limit and self.refused_limit in request.resources.decode():
            raise Refused("update workload", request.id, f"writing {self.refused_limit}")
        self.updates.append(request)
        return pb.UpdateWorkloadResponse()

    async def ReopenLog(self, request: pb.ReopenLogRequest, context: Any) -> pb.ReopenLogResponse:
        await self._enter("ReopenLog")
        self._workload(request.id)
        return pb.ReopenLogResponse()

    # host

    async def Info(self, request: pb.InfoRequest, context: Any) -> pb.InfoResponse:
        await self._enter("Info")
        return pb.InfoResponse(
            version="0",
            toolstack="fake",
            notices=["the fake isolates nothing"],
            profiles=["default"],
            profile_bounds=self.bounds,
            cpus=2,
            user_namespaces=self.user_namespaces,
            selinux=self.selinux,
            capabilities=self.capabilities,
            preflight=self.preflight,
            unknown_seclabels=[label for label in request.seclabels if label not in self.seclabels],
        )

    async def Watch(self, request: pb.WatchRequest, context: Any) -> AsyncIterator[pb.WatchEvent]:
        await self._enter("Watch")
        queue: asyncio.Queue[pb.WatchEvent] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            for zone in list(self.zones.values()):
                yield pb.WatchEvent(zone=zone)
            for workload in list(self.workloads.values()):
                yield pb.WatchEvent(workload=workload)
            yield pb.WatchEvent(synced=pb.Empty())
            while (event := await queue.get()).WhichOneof("event"):
                yield event
        finally:
            self._watchers.discard(queue)


@contextlib.asynccontextmanager
async def serving(fake: FakeProtect, path: Path) -> AsyncIterator[None]:
    """Serve it on a unix socket while the block runs."""

    def add(server: grpc.aio.Server) -> None:
        rpc.add_ZonesServicer_to_server(fake, server)
        rpc.add_WorkloadsServicer_to_server(fake, server)
        rpc.add_HostServicer_to_server(fake, server)

    async with serve_unix(path, add, name="fake-protectd", grace=0.1):
        yield
