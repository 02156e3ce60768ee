"""ExecSync: run a command in a running container; its output and exit code."""

from __future__ import annotations

import asyncio
import logging

from cri.oci.process import exec_process
from cri.runtime import Runtime
from cri.state.container import ContainerPhase
from daemonkit.faults import Invalid, Refused, TooLate
from daemonkit.logs import fields
from daemonkit.rpc.client import MESSAGE_LIMIT
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

log = logging.getLogger(__name__)

OUTPUT_LIMIT = MESSAGE_LIMIT - 64 * 1024
"""Bytes of both streams together: the reply must fit into one message."""

_LONGEST = 7 * 24 * 3600
_ANSWER = 5
"""Seconds beyond the process's own timeout for the zone to start it and to report its end."""


async def exec_sync(runtime: Runtime, asked: cri.ExecSyncRequest) -> cri.ExecSyncResponse:
    """Run a command.  ``timeout`` in seconds, 0 for none; TooLate when it is over, and the process is killed.

    Output beyond the limit is read and dropped: a probe that writes too much must not fail for it.
    """
    container = runtime.containers.find(asked.container_id)
    if container.phase is not ContainerPhase.RUNNING:
        raise Refused("exec in", container.id, f"it is {container.phase.value}")
    if asked.timeout < 0:
        raise Invalid("exec in", container.id, f"timeout {asked.timeout} is negative")
    start = pb.ExecStart(
        workload_id=container.id,
        process=exec_process(container, asked.cmd, tty=False).encode(),
        timeout_ns=min(asked.timeout, _LONGEST) * 10**9,
    )
    most = min(asked.timeout, _LONGEST) + _ANSWER if asked.timeout else None
    try:
        async with asyncio.timeout(most):
            return await _collect(runtime, start)
    except TimeoutError:
        raise TooLate("exec in", container.id, f"its zone did not answer within {most} s") from None


async def _collect(runtime: Runtime, start: pb.ExecStart) -> cri.ExecSyncResponse:
    stdout, stderr, code, dropped = bytearray(), bytearray(), 0, 0
    async for output in runtime.zones.exec(start):
        left = OUTPUT_LIMIT - len(stdout) - len(stderr)
        dropped += max(0, len(output.stdout) + len(output.stderr) - left)
        stdout += output.stdout[:left]
        stderr += output.stderr[:left]
        if output.HasField("exit"):
            code = output.exit.exit_code
    if dropped:
        log.warning("exec output cut off", extra=fields(container=start.workload_id, dropped=dropped))
    return cri.ExecSyncResponse(stdout=bytes(stdout), stderr=bytes(stderr), exit_code=code)
