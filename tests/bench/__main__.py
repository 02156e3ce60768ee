"""``make bench``: xenpod on the fake toolstack beside containerd and runc, in one run, on the same images."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from rich.console import Console

from localnode import images, layers, registry
from localnode.images import Image
from tests.bench import memory, profile, report, sides
from tests.bench.measure import Burst, Crowd, Samples, one_pod
from tests.bench.sides import Side

HOST = "bench.example"
IMAGE = f"{HOST}/debian/busybox:1"
PAUSE = f"{HOST}/pause:1"
_WARM_UP = 2


def main() -> int:
    """Prints the tables; exit status 0 unless a step failed."""
    parser = argparse.ArgumentParser(prog="tests.bench", description=__doc__)
    parser.add_argument("--pods", type=int, default=20, help="pods one after another, on each side")
    parser.add_argument("--crowd", type=int, default=20, help="pods at once")
    parser.add_argument("--only", choices=(report.OURS, report.THEIRS))
    parser.add_argument("--profile", action="store_true", help="show where our time goes, by RPC")
    parser.add_argument("--json", type=Path, help="also write every sample to this file")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="xenpod-bench-"))
    try:
        asyncio.run(_bench(folder, arguments, Console()))
    finally:
        shutil.rmtree(folder)
    return 0


async def _bench(folder: Path, arguments: argparse.Namespace, console: Console) -> None:
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(registry.serve(folder / "registry"))
        await asyncio.to_thread(_push, address, folder)
        settings = 'log_level = "debug"\n' if arguments.profile else ""
        running: dict[str, Side] = {}
        if arguments.only != report.THEIRS:
            serve = sides.ours(folder / "x", address, HOST, settings)
            running[report.OURS] = await stack.enter_async_context(serve)
        if arguments.only != report.OURS:
            serve = sides.theirs(folder / "c", address, HOST, PAUSE)
            running[report.THEIRS] = await stack.enter_async_context(serve)
        figures = await _measure(running, arguments.pods, arguments.crowd, console)
        report.show(figures, console)
        if arguments.profile and report.OURS in running:
            profile.show(folder / "x" / "log", console)
        if arguments.json:
            samples = {name: dict(side.samples.seconds) for name, side in figures.items()}
            await asyncio.to_thread(arguments.json.write_text, json.dumps(samples, indent=1))


def _push(address: str, folder: Path) -> None:
    images.push(address, IMAGE.partition("/")[2], images.busybox())
    pause = Image([layers.pause(folder)], {"Entrypoint": ["/pause"]})
    images.push(address, PAUSE.partition("/")[2], pause)


async def _measure(
    running: Mapping[str, Side], pods: int, crowd: int, console: Console
) -> dict[str, report.Figures]:
    """The sides take turns, so that a busy moment of the machine meets both."""
    pulled = {name: await side.client.pull(IMAGE) for name, side in running.items()}
    samples = {name: Samples() for name in running}
    for number in range(-_WARM_UP, pods):
        for name, side in running.items():
            kept = samples[name] if number >= 0 else Samples()
            await one_pod(side.client, pulled[name], f"pod-{number + _WARM_UP}", kept)
    console.print(f"{pods} pods one after another: done; now {crowd} at once", style="dim")
    figures = {}
    for name, side in running.items():
        burst, footprint = await _crowd(side, pulled[name], crowd)
        figures[name] = report.Figures(samples[name], burst, footprint)
    return figures


async def _crowd(side: Side, image: str, count: int) -> tuple[Burst, report.Footprint]:
    idle = memory.of(side.daemons)
    crowd = Crowd(side.client, image, count)
    try:
        start, slowest = await crowd.start()
        crowded = memory.of(side.daemons)
        zones = memory.of(side.zones())
    finally:
        stop = await crowd.stop()
    pod = memory.Memory(zones.rss // count, zones.pss // count)
    return Burst(count, start, stop, slowest), report.Footprint(idle, crowded, pod)


if __name__ == "__main__":
    sys.exit(main())
