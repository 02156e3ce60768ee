"""Attach: later output of a workload, and its stdin."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable

from daemonkit.faults import Broken, Refused
from daemonkit.tasks import race
from protect.agent.agent_client import AgentClient
from protect.model.lifetime import End
from protect.model.ports import Subscription
from protect.model.process import ProcessName
from protect.model.workload import WorkloadState
from protect.state.daemon_lifetime import DaemonLifetime
from protect.state.output_memory import OutputMemory
from protect.state.registry import Registry
from protect.state.runtime import WorkloadRuntime
from protect.workloads.exec import Output
from protect.workloads.terminal import Command, feed


async def attach_workload(
    registry: Registry,
    memory: OutputMemory,
    lifetime: DaemonLifetime,
    workload_id: str,
    commands: AsyncIterator[Command],
) -> AsyncGenerator[Output, None]:
    """Output until the workload's end, then the exit code.  The workload outlives the caller.

    The output also ends, with None, with the caller's input.  Only a workload without a terminal
    whose stdin ends with this input (``stdin_once``) may still write an answer.
    Broken: the workload ended with its zone.
    """
    runtime = registry.workload("attach", workload_id)
    if runtime.workload.state is WorkloadState.EXITED or runtime.outputs is None:
        raise Refused("attach", f"workload {workload_id}", "it does not run")
    agent = runtime.zone.agent
    await agent.ready()
    subscription = runtime.outputs.subscribe(memory.of(runtime.zone.id))
    detached = False

    def detach() -> None:
        nonlocal detached
        detached = True
        subscription.close()

    feeding = lifetime.tasks.spawn(_feed(runtime, agent, commands, detach), f"stdin of {workload_id}")
    stopping = lifetime.tasks.spawn(_end_with(lifetime.stopping, subscription), f"attach to {workload_id}")
    try:
        async for chunk in subscription:
            yield chunk
        if detached:
            yield None
            return
        await race(runtime.ended.wait(), lifetime.stopping.raised("use", f"workload {workload_id}"))
        if runtime.workload.reason and runtime.workload.reason.of_zone:
            cause = runtime.workload.message.partition("\n")[0]
            raise Broken("attach", f"workload {workload_id}", cause)
        yield runtime.workload.exit_code
    finally:
        feeding.cancel()
        stopping.cancel()
        subscription.close()


async def _end_with(stopping: End, subscription: Subscription) -> None:
    """End the output when the daemon stops."""
    await stopping.wait()
    subscription.close()


async def _feed(
    runtime: WorkloadRuntime, agent: AgentClient, commands: AsyncIterator[Command], detach: Callable[[], None]
) -> None:
    workload = runtime.workload
    may_answer = workload.stdin_once and not workload.tty
    if runtime.stdin is None and workload.streams.stdin:
        runtime.stdin = agent.input(workload.streams.stdin)
    try:
        await feed(
            agent,
            ProcessName(runtime.id),
            runtime.stdin,
            commands,
            close_stdin=workload.stdin_once,
            on_end=(lambda: None) if may_answer else detach,
        )
    finally:
        if workload.stdin_once and runtime.stdin is not None:
            await runtime.stdin.finish()
