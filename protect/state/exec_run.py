"""An exec under way: its output for the caller, and its end or failure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from daemonkit.shares import Holding
from protect.model.process import ProcessName, Streams
from protect.stdio.exec_output import ExecOutput


class ExecRun:
    """Yields output in order of arrival, then the exit code; raises a fault at any moment."""

    def __init__(self, exec_id: str, workload_id: str, streams: Sequence[str], memory: Holding) -> None:
        self.id = exec_id
        self.workload_id = workload_id
        self.output = ExecOutput(streams, memory)
        self.ended = asyncio.Event()
        """Set once the exit code is known, or the exec failed."""
        self.streams = Streams()
        """Set once the agent has created the process."""
        self._names = streams
        self._code = 0
        self._fault: Exception | None = None

    @property
    def process(self) -> ProcessName:
        return ProcessName(self.workload_id, self.id)

    def exited(self, code: int) -> None:
        self._code = code
        self.ended.set()

    def fail(self, fault: Exception) -> None:
        """Raise ``fault`` to the caller instead of the exit code.  The first fault counts."""
        if self._fault is None:
            self._fault = fault
            self.output.abort(fault)
            self.ended.set()

    def give_up_output(self) -> None:
        """End the output, although another process may still hold the streams open."""
        for stream in self._names:
            self.output.finished(stream)

    async def exit_code(self) -> int:
        """Wait for the end; returns the exit code or raises the fault."""
        await self.ended.wait()
        if self._fault is not None:
            raise self._fault
        return self._code
