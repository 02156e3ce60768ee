"""What hostile zones do to an honest one: its calls alone and beside them, in one run of one protectd.

``python -m tests.bench.neighbours`` measures this alone.  Each crowd of neighbours is there from the start,
and is hostile and quiet in turns (its agents are stopped): so the ratio is what their hostility costs, not
their number, and other work on the machine meets both.  What protectd takes of memory is its highest, less
what it had before they were hostile.

Hostile agents have the lowest priority for the CPU: on a real host the hypervisor shares it out.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.measure import Samples
from tests.bench.report import percentile
from tests.support.agent.hostile_zone import ATTACKS, LEGAL, directory_of
from tests.support.images import busybox
from tests.support.protect.zones import TIMEOUT, Zones, serving
from xenpod_proto.protect.v1 import protect_pb2 as pb

CALL, EXEC, STATS = "call of the agent", "exec", "statistics"
STEPS = (CALL, EXEC, STATS)
_PAUSE = 0.02
_ROUNDS = 10
_SETTLED = 0.3
_LOG_LIMIT = 32 << 20
_HONEST = "honest"
_QUIET = ("/bin/sleep", "36000")
_LOUD = ("/bin/sh", "-c", "trap 'exec yes \"\"' USR1; while :; do sleep 0.2; done")


@dataclass(frozen=True, slots=True)
class Beside:
    """An honest zone's samples beside quiet and hostile neighbours; bytes by which protectd grew."""

    neighbours: str
    quiet: Samples
    hostile: Samples
    grown: int
    cut_off: int


async def measure(folder: Path, most: int, calls: int) -> list[Beside]:
    """A few neighbours that flood, as few that break no rule, and ``most`` of every kind."""
    folder.mkdir(parents=True)
    image = await asyncio.to_thread(busybox.build, folder / "busybox.squashfs", folder / "root")
    few = max(1, most // 4)
    crowds: Mapping[str, Sequence[str]] = {
        f"{few}, frames without effect": ["data"] * few,
        f"{few}, within the rules": _of(LEGAL, few),
        f"{most}, within the rules": _of(LEGAL, most),
        f"{most}, of every kind": _of([*ATTACKS, "output"], most),
    }
    found = []
    for number, (name, attacks) in enumerate(crowds.items()):
        async with serving(folder / f"{number}", image, log_level="info") as zones:
            found.append(await _beside(zones, name, attacks, calls))
    return found


def _of(kinds: Sequence[str], count: int) -> list[str]:
    return [kinds[number % len(kinds)] for number in range(count)]


def show(found: Sequence[Beside], console: Console) -> None:
    """Milliseconds beside quiet and hostile neighbours, and the second as a multiple of the first."""
    for percent in (50, 99):
        table = Table(
            title=f"an honest zone, p{percent}, ms", title_justify="left", title_style="bold", box=None
        )
        table.add_column("beside hostile zones", min_width=34)
        for step in STEPS:
            table.add_column(step, justify="right")
            table.add_column("ratio", justify="right", style="bold")
        for beside in found:
            row = [beside.neighbours]
            for step in STEPS:
                quiet, hostile = (
                    percentile(samples.seconds[step], percent) * 1000
                    for samples in (beside.quiet, beside.hostile)
                )
                row += [f"{quiet:.1f} to {hostile:.1f}", f"{hostile / quiet:.2f}"]
            table.add_row(*row)
        console.print(table)
    table = Table(title="protectd, beside them", title_justify="left", title_style="bold", box=None)
    for column in ("beside hostile zones", "grew, MiB", "cut off"):
        table.add_column(column, justify="right" if column != "beside hostile zones" else "left")
    for beside in found:
        table.add_row(beside.neighbours, f"{beside.grown / 2**20:.0f}", f"{beside.cut_off}")
    console.print(table)


async def _beside(zones: Zones, name: str, attacks: Sequence[str], calls: int) -> Beside:
    await zones.create_zone(_HONEST)
    await zones.run(*_QUIET, workload_id="w-honest", zone_id=_HONEST)
    places = []
    for number, attack in enumerate(attacks):
        zone = await zones.create_zone(f"z{number}")
        command = _LOUD if attack == "output" else _QUIET
        await zones.run(*command, workload_id=f"w{number}", zone_id=zone.id)
        places.append(f"{directory_of(zones.protectd.run_dir, zone.domain_id)}:{attack}")
    quiet, hostile = Samples(), Samples()
    await _sample(zones, calls // _ROUNDS, Samples())
    before = _memory(zones, "VmRSS")
    async with _hostile(zones, attacks, places) as crowd:
        for _ in range(_ROUNDS):
            await _sample(zones, calls // _ROUNDS, hostile)
            await crowd.stand_still()
            await _sample(zones, calls // _ROUNDS, quiet)
            await crowd.go_on()
        grown = _memory(zones, "VmHWM") - before
    listed = await zones.clients.zones.ListZones(pb.ListZonesRequest(), timeout=TIMEOUT)
    return Beside(name, quiet, hostile, grown, sum(bool(zone.death_reason) for zone in listed.zones))


async def _sample(zones: Zones, calls: int, samples: Samples) -> None:
    """Each step so often, at a pace that needs a small part of the machine."""
    everything = asyncio.ensure_future(_ask_everybody(zones))
    facts, stats = pb.ZoneFactsRequest(id=_HONEST), pb.ZoneStatsRequest(ids=[_HONEST])
    try:
        for _ in range(calls):
            await samples.time(CALL, zones.clients.zones.ZoneFacts(facts, timeout=TIMEOUT))
            await asyncio.sleep(_PAUSE)
            await samples.time(STATS, zones.clients.zones.ZoneStats(stats, timeout=TIMEOUT))
            await asyncio.sleep(_PAUSE)
            await samples.time(EXEC, zones.exec("/bin/true", workload_id="w-honest"))
    finally:
        everything.cancel()


async def _ask_everybody(zones: Zones) -> None:
    """As the kubelet does, only more often; logs are kept short meanwhile."""
    while True:
        await zones.clients.zones.ZoneStats(pb.ZoneStatsRequest(), timeout=TIMEOUT)
        for path in zones.folder.glob("w*.log"):
            if path.stat().st_size > _LOG_LIMIT:
                os.truncate(path, 0)
        await asyncio.sleep(1.0)


class _Crowd:
    """Hostile neighbours: their agents in one process, and workloads that only write."""

    def __init__(self, zones: Zones, agents: asyncio.subprocess.Process, writers: Sequence[str]) -> None:
        self._zones = zones
        self._agents = agents
        self._writers = writers

    async def stand_still(self) -> None:
        await self._signal(signal.SIGSTOP)
        await asyncio.sleep(_SETTLED)  # what they sent is dealt with

    async def go_on(self) -> None:
        await self._signal(signal.SIGCONT)

    async def _signal(self, number: int) -> None:
        self._agents.send_signal(number)
        for writer in self._writers:
            await self._zones.signal(number, writer)


@asynccontextmanager
async def _hostile(zones: Zones, attacks: Sequence[str], places: Sequence[str]) -> AsyncIterator[_Crowd]:
    """While the block runs the neighbours are hostile."""
    writers = [f"w{number}" for number, attack in enumerate(attacks) if attack == "output"]
    ours = [place for place, attack in zip(places, attacks, strict=True) if attack != "output"]
    process = await asyncio.create_subprocess_exec(
        *("nice", "-n", "19", sys.executable, "-m", "tests.support.agent.hostile_zone", *ours),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(TIMEOUT):
            await process.stdout.readline()
        for writer in writers:
            await zones.signal(signal.SIGUSR1, writer)
        yield _Crowd(zones, process, writers)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _memory(zones: Zones, line: str) -> int:
    process = zones.protectd.daemon.process
    assert process is not None
    found = re.search(rf"{line}:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="tests.bench.neighbours", description=__doc__)
    parser.add_argument("--neighbours", type=int, default=20, help="hostile zones")
    parser.add_argument("--calls", type=int, default=200, help="of each kind, beside each crowd")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="xenpod-bench-"))
    try:
        found = asyncio.run(measure(folder / "n", arguments.neighbours, arguments.calls))
        show(found, Console(width=None if sys.stdout.isatty() else 130))
    finally:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
