"""Exec: a URL that runs a process in a container, for as long as its client stays."""

from __future__ import annotations

from cri.container.execsync import exec_process
from cri.state.container import Phase
from cri.state.node import Node
from cri.streaming.jobs import CommandJob
from cri.streaming.process.command import Command, Wants
from cri.streaming.process.join import join
from cri.streaming.process.outcome import Outcome
from cri.streaming.server import Server
from daemonkit.faults import Fault, Invalid, Refused
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb


def exec_url(node: Node, server: Server, asked: cri.ExecRequest) -> str:
    """The process starts when the client has come."""
    container = node.containers.find(asked.container_id)
    if container.phase is not Phase.RUNNING:
        raise Refused("exec in", container.id, f"it is {container.phase.value}")
    wants = wanted("exec in", container.id, asked)
    start = pb.ExecStart(
        workload_id=container.id,
        process=exec_process(container, asked.cmd, tty=asked.tty).encode(),
        tty=asked.tty,
        stdin=asked.stdin,
    )

    async def conduct(command: Command) -> Outcome:
        try:
            async with node.zones.open_exec(start) as process:
                return Outcome(code=await join(process, command, stdin=asked.stdin, tty=asked.tty))
        except Fault as fault:
            return Outcome(failure=f"error executing command in container: {fault}")

    return server.url(CommandJob("exec", container.id, wants, conduct))


def wanted(operation: str, subject: str, asked: cri.ExecRequest | cri.AttachRequest) -> Wants:
    """The streams that were asked for; Invalid as the CRI says (ExecRequest, AttachRequest)."""
    if not (asked.stdin or asked.stdout or asked.stderr):
        raise Invalid(operation, subject, "none of stdin, stdout and stderr is asked for")
    if asked.tty and asked.stderr:
        raise Invalid(operation, subject, "a terminal has no stderr of its own", "ask for tty or stderr")
    return Wants(asked.stdin, asked.stdout, asked.stderr, asked.tty)
