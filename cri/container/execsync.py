"""ExecSync: run a command in a running container; its output and exit code."""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack
from dataclasses import dataclass, field

from cri.oci.oci_process import exec_process
from cri.state.container import Container, ContainerPhase
from cri.state.pod_records import PodRecords
from cri.zones.client import Zones
from daemonkit.faults import Exhausted, Invalid, Refused, TooLate
from daemonkit.logs import fields
from daemonkit.rpc.channels import MESSAGE_LIMIT_BYTES
from daemonkit.shares import Holding, Shares
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

log = logging.getLogger(__name__)

MEMORY_BUDGET_BYTES = 128 << 20
"""Memory budget in bytes for the data under way of all tenants together (ADR 63)."""
MOST_EXEC_CALLS = 1024
"""Most calls of ExecSync under way; the server has room for four times as many calls of all kinds."""
OUTPUT_LIMIT_BYTES = MESSAGE_LIMIT_BYTES - 64 * 1024
"""Maximum bytes of both streams together: the reply must fit into one message."""
OUTPUT_FLOOR_BYTES = 16 * 1024
"""Bytes of output that every call may have outside the budget; the kubelet reads 10 KiB of a probe."""
COPIES = 3
"""Bytes of memory for each byte of output, until the reply is sent: the message, its encoding, and gRPC's."""

_LONGEST_SECONDS = 7 * 24 * 3600
_ANSWER_SECONDS = 5
"""Seconds beyond the process's own timeout for the zone to start it and to report its end."""


@dataclass(frozen=True, slots=True)
class ExecSync:
    """Runs commands and collects their output.

    ``memory``: bytes for the output, by namespace; ``calls``: calls in flight, by namespace.
    """

    records: PodRecords
    zones: Zones
    memory: Shares = field(default_factory=lambda: Shares(MEMORY_BUDGET_BYTES))
    calls: Shares = field(default_factory=lambda: Shares(MOST_EXEC_CALLS))

    async def exec_sync(self, asked: cri.ExecSyncRequest, until_sent: ExitStack) -> bytes:
        """Run a command: the encoded reply.

        ``timeout`` in seconds, 0 for none; TooLate after the timeout, and the process is killed.
        Exhausted: the namespace has too many commands in flight.
        ``until_sent`` is closed once the reply has been sent.

        Output beyond a limit is read and dropped: long output must not make a probe fail.
        """
        container = self.records.containers.find(asked.container_id)
        if container.phase is not ContainerPhase.RUNNING:
            raise Refused("exec in", container.id, f"it is {container.phase.value}")
        if asked.timeout < 0:
            raise Invalid("exec in", container.id, f"timeout {asked.timeout} is negative")
        start = pb.ExecStart(
            workload_id=container.id,
            process=exec_process(container, asked.cmd, tty=False).encode(),
            timeout_ns=min(asked.timeout, _LONGEST_SECONDS) * 10**9,
        )
        namespace = self.records.namespace_of(container)
        self._begin(container, namespace, until_sent)
        holding = Holding(self.memory, namespace)
        until_sent.callback(holding.close)
        output = _Output(holding)
        most = min(asked.timeout, _LONGEST_SECONDS) + _ANSWER_SECONDS if asked.timeout else None
        try:
            async with asyncio.timeout(most):
                return await self._collect(start, output)
        except TimeoutError:
            raise TooLate("exec in", container.id, f"its zone did not answer within {most} s") from None

    def _begin(self, container: Container, namespace: str, until_sent: ExitStack) -> None:
        if not self.calls.take(namespace):
            held = self.calls.held(namespace)
            used = f"namespace {namespace} has {held} calls of ExecSync under way"
            cause = f"{used}, its share of {MOST_EXEC_CALLS}"
            raise Exhausted("exec in", container.id, cause, "wait until some have ended, or probe less often")
        until_sent.callback(self.calls.give, namespace)

    async def _collect(self, start: pb.ExecStart, output: _Output) -> bytes:
        code = 0
        async for piece in self.zones.exec(start):
            output.stdout += output.fitting(piece.stdout)
            output.stderr += output.fitting(piece.stderr)
            if piece.HasField("exit"):
                code = piece.exit.exit_code
        if output.dropped:
            known = fields(container=start.workload_id, kept=output.size, dropped=output.dropped)
            log.warning("exec output cut off", extra=known)
        return output.reply(code)


class _Output:
    """Output of one command, in memory from its namespace's share."""

    def __init__(self, memory: Holding) -> None:
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.size = 0
        self.dropped = 0
        self._memory = memory
        self._whole = True

    def fitting(self, data: bytes) -> bytes:
        """The part of the data within the limit; nothing after the first dropped byte."""
        left = OUTPUT_LIMIT_BYTES - self.size if self._whole else 0
        kept = data[:left]
        beyond = self.size + len(kept) > OUTPUT_FLOOR_BYTES
        if beyond and not self._memory.grow(COPIES * len(kept)):
            kept = kept[: max(0, OUTPUT_FLOOR_BYTES - self.size)]
        self._whole = self._whole and len(kept) == len(data)
        self.size += len(kept)
        self.dropped += len(data) - len(kept)
        return kept

    def reply(self, code: int) -> bytes:
        """The encoded reply; drops the output."""
        message = cri.ExecSyncResponse(stdout=bytes(self.stdout), stderr=bytes(self.stderr), exit_code=code)
        self.stdout.clear()
        self.stderr.clear()
        return message.SerializeToString()
