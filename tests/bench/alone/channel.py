"""Measures output from an agent in memory through Link into a log, and calls.

``python -m tests.bench.alone.channel``: prints MB/s and microseconds; nothing is asserted.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from protect.channel.link import Link
from protect.stdio.log import WorkloadLog
from tests.support.agent.agent_sim import SimAgent
from tests.support.agent.link_owner import LIST, Owner, create
from tests.support.waiting import until

SIZE = 64 << 20
CALLS = 5000


async def throughput(line: int, directory: Path) -> str:
    """Lines of equal length, of one container's stdout."""
    agent, owner = SimAgent(), Owner()
    link = Link("bench", agent.dial, owner)
    await link.open(5)
    created = (await link.call(create("c1", tty=True), 5)).created
    log = await WorkloadLog.open(str(directory / f"{line}.log"), directory / f"{line}.journal")
    whole = (b"x" * (line - 1) + b"\n") * (SIZE // line)
    output = agent.outputs[created.stdout_stream]
    output.written, output.ended = bytearray(whole), True
    began, cpu = time.perf_counter(), time.process_time()
    link.output(created.stdout_stream, log.stdout)
    agent.write(created.stdout_stream, b"")
    await until(lambda: log.stdout.finished)
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    await link.close()
    await log.close()
    await agent.stop()
    speed = f"lines of {line} bytes: {SIZE / wall / 1e6:.0f} MB/s"
    return f"{speed} ({cpu / wall:.0%} of one core, simulator included)"


async def calls() -> str:
    """Calls in sequence."""
    agent, owner = SimAgent(), Owner()
    link = Link("bench", agent.dial, owner)
    await link.open(5)
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        await link.call(LIST, 5)
        times.append((time.perf_counter() - began) * 1e6)
        agent.requests.clear()
    await link.close()
    await agent.stop()
    times.sort()
    return f"call: p50 {statistics.median(times):.0f} us, p95 {times[int(CALLS * 0.95)]:.0f} us"


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        for line in (80, 1000, 10_000):
            sys.stdout.write(await throughput(line, Path(directory)) + "\n")
    sys.stdout.write(await calls() + "\n")


if __name__ == "__main__":
    asyncio.run(main())
