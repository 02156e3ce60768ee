"""Broken connections and restarted hosts at random: every byte of every stream exactly once."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from protect.channel.link import Link
from protect.stdio.log import WorkloadLog
from tests.support.agent.agent_sim import SimAgent
from tests.support.agent.link_owner import LIST, Owner, create
from tests.support.logs.log_reader import read_log
from tests.support.logs.log_writer import content
from tests.support.waiting import until
from xenpod_proto.channel.v1 import channel_pb2 as pb

SIZE = 1_000_000


class Host:
    """protectd's work for a container: a link, a log, and both again after a restart."""

    def __init__(self, agent: SimAgent, directory: Path) -> None:
        self._agent = agent
        self._directory = directory
        self.owner = Owner()
        self.link = Link("z1", agent.dial, self.owner)
        self.log: WorkloadLog | None = None
        self.created: pb.ProcessCreated | None = None

    @property
    def path(self) -> Path:
        return self._directory / "0.log"

    async def start(self) -> None:
        self.owner.on_connected = self._connected
        await self.link.open(10)

    async def _connected(self) -> None:
        processes = (await self.link.call(LIST, 5)).processes.processes
        if processes and self.log is None:
            await self.adopt(processes[0].created)

    async def adopt(self, created: pb.ProcessCreated) -> None:
        self.created = created
        self.log = await WorkloadLog.open(str(self.path), self._directory / "journal")
        for number, sink in (
            (created.stdout_stream, self.log.stdout),
            (created.stderr_stream, self.log.stderr),
        ):
            if not sink.finished:
                self.link.output(number, sink, sink.consumed)

    async def killed(self) -> Host:
        """The next host; only the files on disk stay of the current host."""
        await self.link.close()
        return Host(self._agent, self._directory)


@pytest.mark.parametrize("seed", range(12))
async def test_logs_are_whole_whatever_breaks(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    agent = SimAgent(chunk=lambda: rng.choice([1 << 20, 4096, 100, 13]))
    whole = {name: content(name, SIZE) for name in ("stdout", "stderr")}
    host = Host(agent, tmp_path)
    await host.start()
    created = (await host.link.call(create("c1"), 5)).created
    await host.adopt(created)
    numbers = {"stdout": created.stdout_stream, "stderr": created.stderr_stream}
    written = dict.fromkeys(numbers, 0)
    while any(written[name] < SIZE for name in numbers):
        for name, number in numbers.items():
            size = rng.randint(0, 40_000)
            agent.write(number, whole[name][written[name] : written[name] + size])
            written[name] += size
        await asyncio.sleep(rng.choice([0, 0, 0.001, 0.004]))
        fate = rng.random()
        if fate < 0.15:
            agent.cut()
        elif fate < 0.3:
            host = await host.killed()
            await host.start()
    for number in numbers.values():
        agent.end(number)
    await until(lambda: all(agent.outputs[number].forgotten for number in numbers.values()))
    assert not any(agent.outputs[number].given_up for number in numbers.values())
    assert read_log(host.path) == whole
    assert agent.faults == []
    assert host.owner.violations == []
    assert agent.connections > 2
    await host.link.close()
    await agent.stop()


@pytest.mark.parametrize("seed", range(6))
async def test_input_is_whole_across_broken_connections(seed: int) -> None:
    rng = random.Random(seed)
    agent, owner = SimAgent(chunk=lambda: rng.choice([1 << 20, 50])), Owner()
    link = Link("z1", agent.dial, owner)

    async def relist() -> None:
        await link.call(LIST, 5)

    owner.on_connected = relist
    await link.open(5)
    created = (await link.call(create("c1", stdin=True), 5)).created
    stdin = link.input(created.stdin_stream)
    whole = rng.randbytes(600_000)

    async def write() -> None:
        at = 0
        while at < len(whole):
            size = rng.randint(1, 50_000)
            await stdin.write(whole[at : at + size])
            at += size
        await stdin.finish()

    writing = asyncio.create_task(write())
    source = agent.inputs[created.stdin_stream]
    while not source.eof:
        await asyncio.sleep(rng.choice([0, 0.001, 0.005]))
        fate = rng.random()
        if fate < 0.05:
            agent.cut()
        elif fate < 0.2:
            source.reading = False
        elif fate < 0.6:
            agent.resume_reading(created.stdin_stream)
    await writing
    assert source.read == whole
    assert agent.faults == [] and owner.violations == []
    await link.close()
    await agent.stop()
