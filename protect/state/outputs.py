"""Passes the output of one workload from the zone to its log."""

from __future__ import annotations

import asyncio

from daemonkit.shares import Holding
from protect.agent.agent_client import AgentClient
from protect.model.ports import LogStream, OutputLog, Subscription
from protect.model.process import Streams


class Outputs:
    """Joins the streams of a workload to the log, and notices the end of all output."""

    def __init__(self, log: OutputLog) -> None:
        self.log = log
        self.drained = asyncio.Event()
        self._open: set[int] = set()
        self._agent: AgentClient | None = None

    @property
    def begun(self) -> bool:
        """Whether the streams have been requested."""
        return self._agent is not None

    def begin(self, agent: AgentClient, streams: Streams) -> None:
        """Request each stream from the end of its log on."""
        self._agent = agent
        sinks = ((streams.stdout, self.log.stdout), (streams.stderr, self.log.stderr))
        wanted = [(number, sink) for number, sink in sinks if number and not sink.finished]
        self._open = {number for number, _ in wanted}
        for number, sink in wanted:
            agent.output(number, _Watched(self, number, sink), sink.consumed)
        if not self._open:
            self.drained.set()

    def finished(self, number: int) -> None:
        self._open.discard(number)
        if not self._open:
            self.drained.set()

    def subscribe(self, memory: Holding) -> Subscription:
        return self.log.subscribe(memory)

    async def close(self) -> None:
        """Give up missing output, and close the log."""
        if self._agent is not None:
            for number in self._open:
                self._agent.drop_output(number)
        self._open = set()
        self.drained.set()
        await self.log.close()


class _Watched:
    """A sink that reports the stream's end."""

    def __init__(self, outputs: Outputs, number: int, sink: LogStream) -> None:
        self._outputs = outputs
        self._number = number
        self._sink = sink

    async def write(self, data: bytes) -> int:
        return await self._sink.write(data)

    async def finish(self) -> None:
        await self._sink.finish()
        self._outputs.finished(self._number)
