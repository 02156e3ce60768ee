"""Exec: another process in a running workload, for as long as its caller stays."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass

from daemonkit.faults import Exhausted, Fault, Invalid, Refused, TooLate
from protect.model.ports import AgentLink
from protect.model.workload import Streams, WorkloadState
from protect.state.node import Node, WorkloadRuntime
from protect.tasks import whole
from protect.workloads.create import streams_of
from protect.workloads.execs import ExecRun
from protect.workloads.terminal import Command, feed
from xenpod_proto.channel.v1 import channel_pb2


@dataclass(frozen=True, slots=True)
class ExecSpec:
    """An exec, validated; ``timeout`` in seconds, 0 for none."""

    workload_id: str
    process: bytes
    tty: bool = False
    stdin: bool = False
    timeout: float = 0.0


Output = tuple[str, bytes] | int
"""("stdout"|"stderr", data), at last the exit code."""


async def execute(
    node: Node, spec: ExecSpec, commands: AsyncIterator[Command]
) -> AsyncGenerator[Output, None]:
    """Run it; it is killed when the caller stops iterating, and after its timeout (TooLate)."""
    runtime = node.workload("exec", spec.workload_id)
    if runtime.workload.state is not WorkloadState.RUNNING or runtime.deleting:
        raise Refused("exec", f"workload {runtime.id}", "it does not run")
    link = await runtime.zone.agent()
    run = _admit(node, runtime, ("stdout",) if spec.tty else ("stdout", "stderr"))
    try:
        streams = await node.tasks.conduct(_begin(node, runtime, link, run, spec), f"exec in {runtime.id}")
        async with contextlib.AsyncExitStack() as helpers:
            feeding = _feed(node, runtime, link, run, streams, commands)
            for work in (feeding, _limit(node, runtime, run, spec.timeout)):
                helpers.callback(node.tasks.spawn(work, f"exec in {runtime.id}").cancel)
            async for chunk in run.output:
                yield chunk
            yield await run.exit_code()
    finally:
        run.fail(Refused("exec", f"workload {runtime.id}", "its caller went away"))
        node.tasks.spawn(_remove(node, runtime, link, run), f"remove exec in {runtime.id}")


def _admit(node: Node, runtime: WorkloadRuntime, streams: Sequence[str]) -> ExecRun:
    limit = node.config.limits.execs_per_zone
    if len(runtime.zone.execs) >= limit:
        raise Exhausted("exec", f"workload {runtime.id}", f"its zone has {limit} execs, as many as it may")
    run = ExecRun(f"e{secrets.token_hex(8)}", runtime.id, streams)
    runtime.zone.execs[run.id] = run
    return run


async def _begin(
    node: Node, runtime: WorkloadRuntime, link: AgentLink, run: ExecRun, spec: ExecSpec
) -> Streams:
    request = channel_pb2.ExecProcess(
        process=channel_pb2.ProcessRef(container_id=runtime.id, exec_id=run.id),
        process_json=spec.process,
        tty=spec.tty,
        stdin=spec.stdin,
    )

    async def ask() -> Streams:
        call = channel_pb2.Request(exec_process=request)
        reply = await link.call(call, node.config.timeouts.call)
        run.made = reply.created
        streams = streams_of(runtime, link, reply.created, tty=spec.tty, stdin=spec.stdin)
        link.output(streams.stdout, run.output.sink("stdout"))
        if streams.stderr:
            link.output(streams.stderr, run.output.sink("stderr"))
        return streams

    async def begin() -> Streams:
        # Whole: streams that were made must not be left without an owner.
        return await whole(ask())

    run.begun.clear()
    try:
        return await runtime.zone.end.guard(f"zone {runtime.zone.id}", begin())
    finally:
        run.begun.set()


async def _feed(
    node: Node,
    runtime: WorkloadRuntime,
    link: AgentLink,
    run: ExecRun,
    streams: Streams,
    commands: AsyncIterator[Command],
) -> None:
    reference = channel_pb2.ProcessRef(container_id=runtime.id, exec_id=run.id)
    stdin = link.input(streams.stdin) if streams.stdin else None
    try:
        await feed(node, link, reference, stdin, commands, close_stdin=True)
    except Invalid as fault:
        run.fail(fault)


async def _limit(node: Node, runtime: WorkloadRuntime, run: ExecRun, timeout: float) -> None:
    """Bounds the exec by its timeout, and its output's end by the drain time."""
    try:
        async with asyncio.timeout(timeout or None):
            await runtime.zone.end.guard(f"zone {runtime.zone.id}", run.ended.wait())
    except TimeoutError:
        run.fail(TooLate("exec", f"workload {runtime.id}", f"it took longer than {timeout:g} s"))
    except Fault as fault:
        run.fail(fault)
    else:
        await asyncio.sleep(node.config.timeouts.drain)
        run.give_up_output()


async def _remove(node: Node, runtime: WorkloadRuntime, link: AgentLink, run: ExecRun) -> None:
    """Kill it if it runs, and have the agent forget it, with its streams."""
    try:
        # Not asked for before it is made: it would be made afterwards, and be nobody's.
        await run.begun.wait()
        link.drop(run.made)
        if not runtime.zone.end and not runtime.gone:
            reference = channel_pb2.ProcessRef(container_id=runtime.id, exec_id=run.id)
            request = channel_pb2.Request(delete_exec=channel_pb2.DeleteExec(process=reference))
            await runtime.zone.end.guard(
                f"zone {runtime.zone.id}", link.call(request, node.config.timeouts.call)
            )
    finally:
        runtime.zone.execs.pop(run.id, None)
