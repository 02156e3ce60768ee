"""Exec: another process in a running workload, while the caller stays."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass

from daemonkit.faults import Exhausted, Fault, Invalid, Refused, TooLate
from daemonkit.tasks import Background
from protect.agent.agent_client import AgentClient
from protect.config import Timeouts, ZoneLimits
from protect.model.container import ExecSpec
from protect.model.workload import WorkloadState
from protect.state.exec_run import ExecRun
from protect.state.output_memory import OutputMemory
from protect.state.registry import Registry
from protect.state.runtime import WorkloadRuntime
from protect.workloads.terminal import Command, feed

_LEAST_DRAIN_SECONDS = 1.0
"""For the output of a process that ends just before its timeout."""
Output = tuple[str, bytes] | int | None
"""("stdout"|"stderr", data), and at the end the exit code, or None for the end of an attach by its caller."""


@dataclass(frozen=True, slots=True)
class Execs:
    """Runs execs, with limits for each zone."""

    registry: Registry
    memory: OutputMemory
    tasks: Background
    limits: ZoneLimits
    timeouts: Timeouts

    async def execute(self, spec: ExecSpec, commands: AsyncIterator[Command]) -> AsyncGenerator[Output, None]:
        """Run an exec until its end, the end of the caller's iteration, or the timeout (TooLate)."""
        runtime = self.registry.workload("exec", spec.workload_id)
        if runtime.workload.state is not WorkloadState.RUNNING or runtime.deleting:
            raise Refused("exec", f"workload {runtime.id}", "it does not run")
        agent = runtime.zone.agent
        await agent.ready()
        run = self._admit(runtime, ("stdout",) if spec.tty else ("stdout", "stderr"))
        try:
            await _begin(agent, run, spec)
            async with contextlib.AsyncExitStack() as helpers:
                for work in (_feed(agent, run, commands), self._limit(runtime, run, spec.timeout)):
                    helpers.callback(self.tasks.spawn(work, f"exec in {runtime.id}").cancel)
                async for chunk in run.output:
                    yield chunk
                yield await run.exit_code()
        finally:
            run.fail(Refused("exec", f"workload {runtime.id}", "its caller went away"))
            self.tasks.spawn(_remove(runtime, run), f"remove exec in {runtime.id}")

    def _admit(self, runtime: WorkloadRuntime, streams: Sequence[str]) -> ExecRun:
        limit = self.limits.execs_per_zone
        if len(runtime.zone.execs) >= limit:
            raise Exhausted(
                "exec", f"workload {runtime.id}", f"its zone has {limit} execs, as many as it may"
            )
        run = ExecRun(f"e{secrets.token_hex(8)}", runtime.id, streams, self.memory.of(runtime.zone.id))
        runtime.zone.execs[run.id] = run
        return run

    async def _limit(self, runtime: WorkloadRuntime, run: ExecRun, timeout: float) -> None:
        """Bound the exec by its timeout, and the end of the output by timeout and drain time.

        A child of the process may hold the output open.  The exec has succeeded all the same, and its caller
        does not wait beyond the timeout for the rest of the output.
        """
        zone, now = runtime.zone, asyncio.get_running_loop().time
        deadline = now() + (timeout or math.inf)
        try:
            async with asyncio.timeout(timeout or None):
                async with zone.end.bounding("use", f"zone {zone.id}"):
                    await run.ended.wait()
        except TimeoutError:
            run.fail(TooLate("exec", f"workload {runtime.id}", f"it took longer than {timeout:g} s"))
        except Fault as fault:
            run.fail(fault)
        else:
            left = max(deadline - now(), _LEAST_DRAIN_SECONDS)
            await asyncio.sleep(min(left, self.timeouts.drain))
            run.give_up_output()


async def _begin(agent: AgentClient, run: ExecRun, spec: ExecSpec) -> None:
    created = await agent.exec_process(run.process, spec.process, tty=spec.tty, stdin=spec.stdin)
    run.streams = created.streams
    agent.output(run.streams.stdout, run.output.sink("stdout"))
    if run.streams.stderr:
        agent.output(run.streams.stderr, run.output.sink("stderr"))


async def _feed(agent: AgentClient, run: ExecRun, commands: AsyncIterator[Command]) -> None:
    stdin = agent.input(run.streams.stdin) if run.streams.stdin else None
    try:
        await feed(agent, run.process, stdin, commands, close_stdin=True)
    except Invalid as fault:
        run.fail(fault)


async def _remove(runtime: WorkloadRuntime, run: ExecRun) -> None:
    """Kill the exec if running, and let the agent forget the exec and its streams."""
    try:
        runtime.zone.client.drop(run.streams)
        if not runtime.zone.end and not runtime.gone:
            await runtime.zone.client.delete_exec(run.process)
    finally:
        runtime.zone.execs.pop(run.id, None)
