"""Exec and Attach: URLs to the standard streams of a process.

An exec's process ends with its client.  Attach leads to a container's first process, which outlives the
client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cri.oci.oci_process import exec_process
from cri.state.container import Container, ContainerPhase
from cri.state.pod_records import PodRecords
from cri.streaming.http.handshake import Request
from cri.streaming.http.negotiate import Chosen, negotiate
from cri.streaming.process.command import SPDY_PROTOCOLS, ChannelCommand, Command, SpdyCommand, Wants
from cri.streaming.process.copy import copy_streams
from cri.streaming.process.exit_status import ExitStatus
from cri.streaming.server import Server
from cri.streaming.transport.channels import PROTOCOLS, SubProtocol
from cri.streaming.transport.websocket import WebSocket
from cri.streaming.transport.wire import ClientWire
from cri.zones.client import Zones
from daemonkit.faults import Fault, Invalid, Refused
from daemonkit.tasks import race
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

Run = Callable[[Command], Awaitable[ExitStatus]]
"""Runs a command with a client's streams; cancelled when the client goes."""


def exec_url(records: PodRecords, zones: Zones, server: Server, asked: cri.ExecRequest) -> str:
    """A URL for the request; the process starts when the client has come."""
    container = records.containers.find(asked.container_id)
    if container.phase is not ContainerPhase.RUNNING:
        raise Refused("exec in", container.id, f"it is {container.phase.value}")
    wants = wanted("exec in", container.id, asked)
    start = pb.ExecStart(
        workload_id=container.id,
        process=exec_process(container, asked.cmd, tty=asked.tty).encode(),
        tty=asked.tty,
        stdin=asked.stdin,
    )

    async def run(command: Command) -> ExitStatus:
        try:
            async with zones.open_exec(start) as process:
                return ExitStatus(code=await copy_streams(process, command, stdin=asked.stdin, tty=asked.tty))
        except Fault as fault:
            return ExitStatus(failure=f"error executing command in container: {fault}")

    return server.url(_job(records, "exec", container, wants, run, asked.ByteSize()))


def attach_url(records: PodRecords, zones: Zones, server: Server, asked: cri.AttachRequest) -> str:
    """A URL for the request: output from the client's arrival, then success, whatever the exit code."""
    container = records.containers.find(asked.container_id)
    if container.phase is not ContainerPhase.RUNNING:
        raise Refused("attach to", container.id, f"it is {container.phase.value}")
    wants = wanted("attach to", container.id, asked)

    async def run(command: Command) -> ExitStatus:
        try:
            async with zones.open_attach(pb.AttachStart(workload_id=container.id)) as process:
                await copy_streams(process, command, stdin=container.config.stdin, tty=container.config.tty)
        except Fault as fault:
            return ExitStatus(failure=f"error attaching to container: {fault}")
        return ExitStatus()

    return server.url(_job(records, "attach", container, wants, run))


def wanted(operation: str, subject: str, asked: cri.ExecRequest | cri.AttachRequest) -> Wants:
    """The requested streams; Invalid for requests that CRI forbids (ExecRequest, AttachRequest)."""
    if not (asked.stdin or asked.stdout or asked.stderr):
        raise Invalid(operation, subject, "none of stdin, stdout and stderr is asked for")
    if asked.tty and asked.stderr:
        raise Invalid(operation, subject, "a terminal has no stderr of its own", "ask for tty or stderr")
    return Wants(asked.stdin, asked.stdout, asked.stderr, asked.tty)


@dataclass(frozen=True, slots=True)
class CommandJob:
    """An exec or an attach."""

    kind: str
    subject: str
    pod: str
    namespace: str
    wants: Wants
    run: Run
    size: int = 0

    def negotiate(self, request: Request) -> Chosen[SubProtocol]:
        return negotiate(request, SPDY_PROTOCOLS, PROTOCOLS)

    async def serve(
        self, wire: ClientWire, chosen: Chosen[SubProtocol], stream_timeout: float, stopping: asyncio.Event
    ) -> None:
        command: Command
        if chosen.websocket:
            command = ChannelCommand(WebSocket(wire), chosen.protocol, self.wants)
        else:
            command = SpdyCommand(wire, chosen.protocol, self.wants)
        await race(self._serve(command, stream_timeout, stopping), command.run())

    async def _serve(self, command: Command, stream_timeout: float, stopping: asyncio.Event) -> None:
        await command.end(await race(self._run(command, stream_timeout), _stopped(stopping)))

    async def _run(self, command: Command, stream_timeout: float) -> ExitStatus:
        try:
            async with asyncio.timeout(stream_timeout):
                await command.ready()
        except TimeoutError:
            return ExitStatus(failure="the client did not open its streams in time")
        return await self.run(command)


def _job(
    records: PodRecords, kind: str, container: Container, wants: Wants, run: Run, size: int = 0
) -> CommandJob:
    namespace = records.namespace_of(container)
    return CommandJob(kind, container.id, container.sandbox_id, namespace, wants, run, size)


async def _stopped(stopping: asyncio.Event) -> ExitStatus:
    """The status of a command cut off by the end of the server; its real status is unknown."""
    await stopping.wait()
    return ExitStatus(failure="the container runtime is stopping")
