"""Attach: a URL to the standard streams of a container's first process, which outlives its client."""

from __future__ import annotations

from cri.state.container import Phase
from cri.state.node import Node
from cri.streaming.jobs import CommandJob
from cri.streaming.process.command import Command
from cri.streaming.process.exec import wanted
from cri.streaming.process.join import join
from cri.streaming.process.outcome import Outcome
from cri.streaming.server import Server
from daemonkit.faults import Fault, Refused
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb


def attach_url(node: Node, server: Server, asked: cri.AttachRequest) -> str:
    """Output from the moment the client has come; success at the end, whatever the exit code."""
    container = node.containers.find(asked.container_id)
    if container.phase is not Phase.RUNNING:
        raise Refused("attach to", container.id, f"it is {container.phase.value}")
    wants = wanted("attach to", container.id, asked)

    async def conduct(command: Command) -> Outcome:
        try:
            async with node.zones.open_attach(pb.AttachStart(workload_id=container.id)) as process:
                await join(process, command, stdin=container.config.stdin, tty=container.config.tty)
        except Fault as fault:
            return Outcome(failure=f"error attaching to container: {fault}")
        return Outcome()

    return server.url(CommandJob("attach", container.id, wants, conduct))
