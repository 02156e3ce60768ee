"""The gRPC service protect.v1.Workloads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import grpc.aio

from daemonkit.faults import Invalid
from daemonkit.rpc.interceptors import read_only
from protect.config import Timeouts
from protect.model import checks
from protect.model.ports import ZoneVolumes
from protect.server import requests, statistics, translate
from protect.state.daemon_lifetime import DaemonLifetime
from protect.state.output_memory import OutputMemory
from protect.state.registry import Registry
from protect.workloads import attach, control, start
from protect.workloads.create import WorkloadCreation
from protect.workloads.delete import WorkloadRemoval
from protect.workloads.exec import Execs, Output
from protect.workloads.terminal import Command, Resize, Stdin, StdinEnd
from protect.zones import stats
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class WorkloadVerbs:
    """Verbs with collaborators of their own."""

    creation: WorkloadCreation
    removal: WorkloadRemoval
    execs: Execs


@dataclass(frozen=True, eq=False)
class WorkloadsServicer(protect_pb2_grpc.WorkloadsServicer):
    """Each method checks the request, calls a verb, and translates the result."""

    registry: Registry
    volumes: ZoneVolumes
    lifetime: DaemonLifetime
    memory: OutputMemory
    timeouts: Timeouts
    verbs: WorkloadVerbs

    async def CreateWorkload(self, request: pb.CreateWorkloadRequest, context: Context) -> pb.Workload:
        return translate.workload(await self.verbs.creation.create(requests.workload_spec(request)))

    async def StartWorkload(self, request: pb.StartWorkloadRequest, context: Context) -> pb.Workload:
        return translate.workload(
            await start.start(self.registry, self.volumes, _id("start workload", request.id))
        )

    async def SignalWorkload(
        self, request: pb.SignalWorkloadRequest, context: Context
    ) -> pb.SignalWorkloadResponse:
        workload_id = _id("signal workload", request.id)
        await control.signal(self.registry, workload_id, request.signal, every=request.all)
        return pb.SignalWorkloadResponse()

    async def WaitWorkload(self, request: pb.WaitWorkloadRequest, context: Context) -> pb.Workload:
        return translate.workload(
            await control.wait(self.registry, self.lifetime.stopping, _id("wait for workload", request.id))
        )

    async def DeleteWorkload(
        self, request: pb.DeleteWorkloadRequest, context: Context
    ) -> pb.DeleteWorkloadResponse:
        await self.verbs.removal.delete(_id("delete workload", request.id))
        return pb.DeleteWorkloadResponse()

    @read_only
    async def GetWorkload(self, request: pb.GetWorkloadRequest, context: Context) -> pb.Workload:
        operation = "get workload"
        return translate.workload(self.registry.workload(operation, _id(operation, request.id)).workload)

    @read_only
    async def ListWorkloads(
        self, request: pb.ListWorkloadsRequest, context: Context
    ) -> pb.ListWorkloadsResponse:
        found = self.registry.visible_workloads(request.zone_id)
        return pb.ListWorkloadsResponse(workloads=[translate.workload(workload) for workload in found])

    async def Exec(
        self, request_iterator: AsyncIterator[pb.ExecInput], context: Context
    ) -> AsyncIterator[pb.ExecOutput]:
        first = await anext(aiter(request_iterator), None)
        if first is None or first.WhichOneof("input") != "start":
            raise Invalid("exec", "", "the first message is not start")
        commands = _commands(request_iterator)
        async with aclosing(self.verbs.execs.execute(requests.exec_spec(first.start), commands)) as outputs:
            async for output in outputs:
                yield _output(output)

    async def Attach(
        self, request_iterator: AsyncIterator[pb.AttachInput], context: Context
    ) -> AsyncIterator[pb.ExecOutput]:
        first = await anext(aiter(request_iterator), None)
        if first is None or first.WhichOneof("input") != "start":
            raise Invalid("attach", "", "the first message is not start")
        workload_id = _id("attach", first.start.workload_id)
        commands = _commands(request_iterator)
        async with aclosing(
            attach.attach_workload(self.registry, self.memory, self.lifetime, workload_id, commands)
        ) as outputs:
            async for output in outputs:
                yield _output(output)

    @read_only
    async def WorkloadStats(
        self, request: pb.WorkloadStatsRequest, context: Context
    ) -> pb.WorkloadStatsResponse:
        rows = await stats.of_workloads(
            self.registry, self.timeouts, [_id("stats", one) for one in request.ids]
        )
        return statistics.workload_stats(rows)

    async def UpdateWorkload(
        self, request: pb.UpdateWorkloadRequest, context: Context
    ) -> pb.UpdateWorkloadResponse:
        workload_id, resources = requests.update(request)
        await control.update(self.registry, workload_id, resources)
        return pb.UpdateWorkloadResponse()

    async def ReopenLog(self, request: pb.ReopenLogRequest, context: Context) -> pb.ReopenLogResponse:
        await control.reopen_log(self.registry, _id("reopen log", request.id))
        return pb.ReopenLogResponse()


def _id(operation: str, value: str) -> str:
    return checks.identifier(operation, "workload", value)


async def _commands(
    messages: AsyncIterator[pb.ExecInput] | AsyncIterator[pb.AttachInput],
) -> AsyncIterator[Command]:
    async for message in messages:
        match message.WhichOneof("input"):
            case "stdin":
                yield Stdin(message.stdin)
            case "stdin_eof":
                yield StdinEnd()
            case "resize":
                yield Resize(message.resize.rows, message.resize.columns)
            case _:
                raise Invalid("read input", "", "a message after the first is start, or nothing known")


def _output(output: Output) -> pb.ExecOutput:
    if output is None:
        return pb.ExecOutput(detached=pb.Detached())
    if isinstance(output, int):
        return pb.ExecOutput(exit=pb.ProcessExit(exit_code=output))
    name, data = output
    return pb.ExecOutput(stdout=data) if name == "stdout" else pb.ExecOutput(stderr=data)
