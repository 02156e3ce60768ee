"""Attach: the output of a workload from now on, and its stdin."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from daemonkit.faults import Refused
from protect.model.ports import AgentLink, Subscription
from protect.model.workload import WorkloadState
from protect.state.node import Node, WorkloadRuntime
from protect.workloads.exec import Output
from protect.workloads.terminal import Command, feed
from xenpod_proto.channel.v1 import channel_pb2


async def attach(
    node: Node, workload_id: str, commands: AsyncIterator[Command]
) -> AsyncGenerator[Output, None]:
    """Output until the workload ends, then its exit code; it goes on when the caller leaves."""
    runtime = node.workload("attach", workload_id)
    if runtime.workload.state is WorkloadState.EXITED or runtime.outputs is None:
        raise Refused("attach", f"workload {workload_id}", "it does not run")
    link = await runtime.zone.agent()
    subscription = runtime.outputs.subscribe()
    feeding = node.tasks.spawn(_feed(node, runtime, link, commands), f"stdin of {workload_id}")
    stopping = node.tasks.spawn(_end_with(node, subscription), f"attach to {workload_id}")
    try:
        async for chunk in subscription:
            yield chunk
        await node.stopping.guard(f"workload {workload_id}", runtime.settled.wait())
        yield runtime.workload.exit_code
    finally:
        feeding.cancel()
        stopping.cancel()
        subscription.close()


async def _end_with(node: Node, subscription: Subscription) -> None:
    """A stop of the daemon does not wait for output."""
    await node.stopping.wait()
    subscription.close()


async def _feed(
    node: Node, runtime: WorkloadRuntime, link: AgentLink, commands: AsyncIterator[Command]
) -> None:
    workload = runtime.workload
    if runtime.stdin is None and workload.streams.stdin:
        runtime.stdin = link.input(workload.streams.stdin)
    reference = channel_pb2.ProcessRef(container_id=runtime.id)
    try:
        await feed(node, link, reference, runtime.stdin, commands, close_stdin=workload.stdin_once)
    finally:
        if workload.stdin_once and runtime.stdin is not None:
            await runtime.stdin.finish()
