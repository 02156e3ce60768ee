"""The real Link against the real agent: byte-exact stdio through cuts, restarts and SIGKILL of the host."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from daemonkit.faults import Exists, Missing, Refused
from protect.channel.link import Link
from protect.model.transport import Transport
from protect.stdio.log import WorkloadLog
from protect.toolstack.fake.channel import connect
from tests.support.agent.link_host import LogHost
from tests.support.agent.link_owner import LIST, Collector, Owner
from tests.support.agent.zone import Zone, creation
from tests.support.logs.log_reader import read_log
from tests.support.waiting import until
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[3]
LINES = 150_000
TALK = f"seq 1 {LINES}; seq 1 {LINES} >&2; printf end"
EXPECTED = {
    "stdout": b"".join(b"%d\n" % n for n in range(1, LINES + 1)) + b"end",
    "stderr": b"".join(b"%d\n" % n for n in range(1, LINES + 1)),
}


class Dialled:
    """A dial that keeps its transport, for a later break."""

    def __init__(self, zone: Zone) -> None:
        self._directory = zone.directory
        self.transport: Transport | None = None

    async def __call__(self) -> Transport:
        self.transport = await connect(self._directory, "z1")
        return self.transport

    async def cut(self) -> None:
        assert self.transport is not None
        await self.transport.close()


async def start(link: Link, name: str, *args: str, stdin: bool = False) -> pb.ProcessCreated:
    request = pb.Request(create_container=creation(name, *args, stdin=stdin))
    created = (await link.call(request, 60)).created
    await link.call(pb.Request(start_container=pb.StartContainer(id=name)), 60)
    return created


def talk(zone: Zone) -> None:
    """The only container, with much output; its host is gone."""
    client = zone.connect()
    client.delete("c1")
    client.call(create_container=creation("c1", "sh", "-c", TALK))
    client.call(start_container=pb.StartContainer(id="c1"))
    client.close()


async def test_failed_calls_have_their_kinds(zone: Zone) -> None:
    owner = Owner()
    link = Link("z1", Dialled(zone), owner)
    hello = await link.open(60)
    assert len(hello.boot_id) == 16
    facts = (await link.call(pb.Request(get_facts=pb.GetFacts()), 60)).facts
    assert facts.kernel_release == hello.kernel_release
    with pytest.raises(Missing):
        await link.call(pb.Request(start_container=pb.StartContainer(id="none")), 60)
    created = await start(link, "c1", "sh", "-c", "echo hello; exit 3")
    with pytest.raises(Exists):
        await link.call(pb.Request(create_container=creation("c1", "true")), 60)
    sink = Collector()
    link.output(created.stdout_stream, sink)
    await asyncio.wait_for(sink.finished.wait(), 60)
    assert sink.data == b"hello\n"
    await until(lambda: bool(owner.exits))
    assert owner.exits[0].exit_code == 3
    await link.call(pb.Request(delete_container=pb.DeleteContainer(id="c1")), 60)
    assert owner.violations == []
    await link.close()


@pytest.mark.parametrize("seed", range(3))
async def test_a_log_is_whole_through_cuts_and_restarts(zone: Zone, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    breaks = 0
    for number in range(20):  # a log, unless the log is complete before enough breaks
        talk(zone)
        path = tmp_path / f"{number}.log"
        breaks += await _broken_off(zone, path, rng)
        assert read_log(path) == EXPECTED
        if breaks > 3:
            return
    pytest.fail(f"the link was too quick: {breaks} breaks")


async def _broken_off(zone: Zone, path: Path, rng: random.Random) -> int:
    """Go on until the log is complete: how often the connection or the host ended before."""
    journal = path.with_suffix(".journal")
    host = LogHost(zone.directory, await WorkloadLog.open(str(path), journal))
    await host.link.open(60)
    breaks = 0
    while not host.done:
        await asyncio.sleep(rng.random() * 0.03)
        if breaks < 40 and rng.random() < 0.6:
            breaks += 1
            assert host.transport is not None
            await host.transport.close()
        elif breaks < 40 and rng.random() < 0.6:
            breaks += 1
            await host.link.close()
            assert host.violations == []
            # The old log is not closed: its process is gone.
            host = LogHost(zone.directory, await WorkloadLog.open(str(path), journal))
            await host.link.open(60)
    assert host.violations == []
    await host.link.close()
    return breaks


async def test_stdin_is_whole_through_cuts(zone: Zone) -> None:
    owner, dialled = Owner(), Dialled(zone)
    link = Link("z1", dialled, owner)

    async def relist() -> None:
        await link.call(LIST, 60)

    owner.on_connected = relist
    await link.open(60)
    created = await start(link, "c1", "cat", stdin=True)
    sink = Collector()
    link.output(created.stdout_stream, sink)
    rng = random.Random(1)
    whole = rng.randbytes(6_000_000)

    async def write() -> None:
        stdin = link.input(created.stdin_stream)
        for at in range(0, len(whole), 50_000):
            await stdin.write(whole[at : at + 50_000])
        await stdin.finish()

    async def cut() -> None:
        for count in range(1, 6):
            await owner.greeted(count)
            await asyncio.sleep(rng.random() * 0.01)
            await dialled.cut()

    await asyncio.gather(write(), cut())
    await asyncio.wait_for(sink.finished.wait(), 60)
    assert sink.data == whole
    assert len(owner.hellos) == 6 and owner.violations == []
    with pytest.raises((Refused, Missing)):
        await link.input(created.stdin_stream).write(b"more")
    await link.close()


async def test_a_given_up_output_does_not_block_its_process(zone: Zone) -> None:
    """After a restart no host registers the output: the agent is told to drop the output with its earlier
    bytes.
    """
    talk(zone)
    owner = Owner()
    sink = Collector()

    async def register() -> None:
        listed = (await first.call(LIST, 60)).processes.processes[0].created
        first.output(listed.stdout_stream, sink)

    owner.on_connected = register
    first = Link("z1", Dialled(zone), owner)
    await first.open(60)
    await sink.until(200_000)
    await first.close()
    owner = Owner()
    link = Link("z1", Dialled(zone), owner)

    async def relist() -> None:
        await link.call(LIST, 60)

    owner.on_connected = relist
    await link.open(60)
    await until(lambda: bool(owner.exits))
    assert owner.exits[0].exit_code == 0
    assert len(owner.hellos) == 1 and owner.violations == []
    await link.close()


@pytest.mark.slow
def test_a_log_is_complete_after_kills_of_the_host(zone: Zone, tmp_path: Path) -> None:
    """The host is killed at random moments while the container writes; its log is whole in the end."""
    kills = 0
    for number in range(20):  # a log, unless the log is complete before enough kills of its host
        talk(zone)
        path = tmp_path / f"{number}.log"
        kills += _killed(zone, path)
        assert read_log(path) == EXPECTED
        if kills >= 5:
            return
    pytest.fail(f"the host was too quick: {kills} kills")


def _killed(zone: Zone, path: Path) -> int:
    """Continue until the log is complete; returns the number of kills of its host."""
    journal = str(path.with_suffix(".journal"))
    command = [sys.executable, "-m", "tests.support.agent.link_host", str(zone.directory), str(path), journal]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"}
    rng = random.Random()
    kills = 0
    while True:
        with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"begun\n"
            try:
                # the first few early: a quick run cannot be done before enough kills
                child.wait(timeout=rng.random() * (0.005 if kills < 5 else 0.03) if kills < 20 else 60)
            except subprocess.TimeoutExpired:
                child.kill()
                kills += 1
            if child.stdout.read() == b"done\n":
                return kills
        assert child.returncode == -9


async def test_call_time_and_log_speed_are_printed(
    zone: Zone, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prints the time of a call and the speed of a log; asserts no limits."""
    link = Link("z1", Dialled(zone), Owner())
    await link.open(60)
    times = []
    for _ in range(500):
        began = time.perf_counter()
        await link.call(LIST, 60)
        times.append((time.perf_counter() - began) * 1e6)
    size = 80 * 400_000
    created = await start(link, "c1", "sh", "-c", f"yes {'x' * 79} | head -c {size}")
    log = await WorkloadLog.open(str(tmp_path / "0.log"), tmp_path / "journal")
    began, cpu = time.perf_counter(), time.process_time()
    link.output(created.stdout_stream, log.stdout)
    await until(lambda: log.stdout.finished)
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    assert log.stdout.consumed == size
    await link.close()
    with capsys.disabled():
        times.sort()
        sys.stdout.write(f"\nlog: {size / wall / 1e6:.0f} MB/s, {cpu / wall:.0%} of one core in the host")
        sys.stdout.write(
            f"\ncall to the agent: p50 {statistics.median(times):.0f} us, p95 {times[475]:.0f} us\n"
        )
