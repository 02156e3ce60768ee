"""A host that logs one container of a zone; tests kill it at any moment.

``python -m tests.support.agent.link_host DOMAINDIR LOG JOURNAL``: connects, adopts the streams of the first
container, says ``begun``, and ``done`` once both have ended and are in the log.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from protect.channel.link import Link
from protect.model.process import AgentHello, ProcessExited
from protect.model.transport import Transport
from protect.stdio.log import WorkloadLog
from protect.toolstack.fake.channel import connect
from xenpod_proto.channel.v1 import channel_pb2 as pb


class LogHost:
    """Owns a link and the log of the first container it lists."""

    def __init__(self, directory: Path, log: WorkloadLog) -> None:
        self._directory = directory
        self.link = Link("z1", self._dial, self)
        self.log = log
        self.transport: Transport | None = None
        self.violations: list[str] = []
        self.exits: list[ProcessExited] = []
        self.hellos = 0
        self._registered = False

    async def _dial(self) -> Transport:
        self.transport = await connect(self._directory, "z1")
        return self.transport

    async def connected(self, hello: AgentHello, new_boot: bool) -> None:
        self.hellos += 1
        reply = await self.link.call(pb.Request(list_processes=pb.ListProcesses()), 60)
        if self._registered:
            return
        self._registered = True
        created = reply.processes.processes[0].created
        for number, sink in (
            (created.stdout_stream, self.log.stdout),
            (created.stderr_stream, self.log.stderr),
        ):
            if not sink.finished:
                self.link.output(number, sink, sink.consumed)

    def process_exited(self, exited: ProcessExited) -> None:
        self.exits.append(exited)

    def disconnected(self) -> None:
        """The link connects again by itself."""

    def violation(self, cause: str) -> None:
        self.violations.append(cause)

    @property
    def done(self) -> bool:
        return self.log.stdout.finished and self.log.stderr.finished


async def main(directory: Path, path: Path, journal: Path) -> None:
    host = LogHost(directory, await WorkloadLog.open(str(path), journal))
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    await host.link.open(60)
    while not host.done:  # noqa: ASYNC110 - a test's process only waits for its end
        await asyncio.sleep(0.01)
    await host.link.close()
    assert not host.violations, host.violations
    sys.stdout.write("done\n")


if __name__ == "__main__":
    asyncio.run(main(*map(Path, sys.argv[1:])))
