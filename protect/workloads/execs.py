"""One exec under way: its output on the way to its caller, its end, its failure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from protect.stdio.exec_output import ExecOutput
from xenpod_proto.channel.v1 import channel_pb2


class ExecRun:
    """Output in order of arrival, then the exit code; or a fault at any moment."""

    def __init__(self, exec_id: str, workload_id: str, streams: Sequence[str]) -> None:
        self.id = exec_id
        self.workload_id = workload_id
        self.output = ExecOutput(streams)
        self.ended = asyncio.Event()
        """Set once its exit code is known, or it failed."""
        self.begun = asyncio.Event()
        """Not set while the agent is being asked for it."""
        self.begun.set()
        self.made = channel_pb2.ProcessCreated()
        """Its streams, as the agent said; untrusted."""
        self._streams = streams
        self._code = 0
        self._fault: Exception | None = None

    def exited(self, code: int) -> None:
        self._code = code
        self.ended.set()

    def fail(self, fault: Exception) -> None:
        """Its caller gets this instead; the first one stays."""
        if self._fault is None:
            self._fault = fault
            self.output.abort(fault)
            self.ended.set()

    def give_up_output(self) -> None:
        """What still holds its streams open is not waited for."""
        for stream in self._streams:
            self.output.finished(stream)

    async def exit_code(self) -> int:
        """Waits for the end; raises the fault."""
        await self.ended.wait()
        if self._fault is not None:
            raise self._fault
        return self._code
