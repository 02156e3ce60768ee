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

from tests.bench import (
    growth,
    memory,
    parts,
    passing,
    plugins,
    profile,
    pulling,
    reading,
    report,
    sides,
    streams,
)
from tests.bench.measure import Burst, Crowd, Samples, one_pod
from tests.bench.neighbours import zones
from tests.bench.sides import Side
from tests.support.delegate.containerd import version
from tools.localnode import images, layers, registry

HOST = "bench.example"
IMAGE = f"{HOST}/debian/busybox:1"
PAUSE = f"{HOST}/pause:1"
_WARM_UP = 2
_ROUNDS = 3
_WIDTH = 130


def main() -> int:
    """Measure and print the tables; the exit status is 0 unless a step failed."""
    parser = argparse.ArgumentParser(prog="tests.bench", description=__doc__)
    parser.add_argument("--pods", type=int, default=20, help="pods one after another, on each side")
    parser.add_argument("--crowd", type=int, default=20, help="pods at once")
    parser.add_argument(
        "--pods-listed", type=int, default=100, help="pods that are listed; 0: no such figures"
    )
    parser.add_argument(
        "--passed", type=int, default=20, help="pods of containerd through xenpod-cri; 0: no such figures"
    )
    parser.add_argument("--stream-mib", type=int, default=64, help="size of a stream; 0: no such figures")
    parser.add_argument(
        "--image-mib", type=int, default=700, help="size of a pulled image, unpacked; 0: no such figures"
    )
    parser.add_argument("--others", type=int, default=100, help="pods to start among; 0: no such figures")
    parser.add_argument("--neighbours", type=int, default=20, help="hostile zones; 0: no such figures")
    parser.add_argument("--containerd", type=Path, metavar="FOLDER", help="of containerd and its shim")
    parser.add_argument("--only", choices=(report.OURS, report.THEIRS))
    parser.add_argument("--profile", action="store_true", help="show where our time goes, by RPC")
    parser.add_argument("--json", type=Path, help="also write every sample to this file")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="xenpod-bench-"))
    try:
        console = Console(width=None if sys.stdout.isatty() else _WIDTH)
        asyncio.run(_bench(folder, arguments, console))
    finally:
        shutil.rmtree(folder)
    return 0


async def _bench(folder: Path, arguments: argparse.Namespace, console: Console) -> None:
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(registry.serve_registry(folder / "registry"))
        await asyncio.to_thread(_push, address, folder)
        running = await _serve(folder, address, arguments, console, stack)
        pulled = {name: await side.client.pull(IMAGE) for name, side in running.items()}
        samples = await _one_by_one(running, pulled, arguments.pods)
        calls = profile.read(folder / "x" / "log") if arguments.profile else {}
        console.print(f"{arguments.pods} pods one after another: done; now {arguments.crowd} at once")
        figures = {}
        for name, side in running.items():
            burst, footprint = await _crowd(side, pulled[name], arguments.crowd)
            figures[name] = report.Figures(samples[name], burst, footprint)
        report.show(figures, console)
        if arguments.others:
            console.print(f"now pods among {arguments.others} others")
            grown = await growth.measure(running, pulled, arguments.pods, arguments.others)
            report.show_growth(grown, console)
        if arguments.pods_listed:
            console.print(f"now {arguments.pods_listed} pods to be listed")
            read = await reading.measure(running, pulled, arguments.pods_listed)
            report.show_reads(read, arguments.pods_listed, console)
            _keep(samples, read)
        if report.OURS in running:
            await _parts(running[report.OURS], samples[report.OURS], arguments.pods_listed)
            report.show_parts(samples[report.OURS], arguments.pods_listed, console)
        if arguments.passed and report.THEIRS in running:
            more = await _passed(folder, address, running[report.THEIRS], pulled, arguments, console)
            _keep(samples, {report.THEIRS: more})
        if arguments.stream_mib:
            console.print(f"now streams of {arguments.stream_mib} MiB")
            size = arguments.stream_mib * streams.MIB
            passed = await streams.measure(running, pulled, size, _ROUNDS)
            report.show_streams(passed, arguments.stream_mib, console)
            _keep(samples, passed)
        if arguments.image_mib:
            console.print(f"now pulls of an image of {arguments.image_mib} MiB")
            pushed = await asyncio.to_thread(pulling.push, address, HOST, arguments.image_mib)
            took, stores = await pulling.measure(running, pushed[1], pushed[2], _ROUNDS)
            report.show_pulls(took, stores, pushed[0], console)
            _keep(samples, took)
        if arguments.neighbours and report.OURS in running:
            console.print(f"now an honest zone among {arguments.neighbours} that are hostile")
            beside = await zones.measure(folder / "n", arguments.neighbours)
            zones.show(beside, console)
        if calls:
            profile.show(calls, console)
        if arguments.json:
            seconds = {name: side.seconds for name, side in samples.items()}
            await asyncio.to_thread(arguments.json.write_text, json.dumps(seconds, indent=1))


async def _serve(
    folder: Path, address: str, arguments: argparse.Namespace, console: Console, stack: AsyncExitStack
) -> dict[str, Side]:
    """Start the wanted sides, which serve until the stack is left."""
    settings = 'log_level = "debug"\n' if arguments.profile else ""
    running: dict[str, Side] = {}
    if arguments.only != report.THEIRS:
        ours = sides.ours(folder / "x", address, HOST, settings)
        running[report.OURS] = await stack.enter_async_context(ours)
    if arguments.only != report.OURS:
        programs = arguments.containerd
        theirs_is = await asyncio.to_thread(version, programs)
        console.print(f"beside containerd {theirs_is}")
        theirs = sides.theirs(folder / "c", address, HOST, PAUSE, programs)
        running[report.THEIRS] = await stack.enter_async_context(theirs)
    return running


def _keep(samples: Mapping[str, Samples], more: Mapping[str, Samples]) -> None:
    for name, side in more.items():
        samples[name].seconds |= side.seconds


async def _passed(
    folder: Path,
    address: str,
    theirs: Side,
    pulled: Mapping[str, str],
    arguments: argparse.Namespace,
    console: Console,
) -> Samples:
    """Reach containerd's pods through an xenpod-cri without other work."""
    listed = arguments.pods_listed or arguments.passed
    console.print(f"now {arguments.passed} pods of containerd through xenpod-cri, and lists of {listed}")
    settings = passing.settings(theirs)
    async with sides.ours(folder / "p", address, HOST, "", cri=settings) as node:
        ways = {passing.THROUGH: node.client, passing.DIRECT: theirs.client}
        samples = await passing.measure(ways, pulled[report.THEIRS], arguments.passed, listed)
    report.show_passed(samples, listed, console)
    return passing.named(samples)


async def _parts(side: Side, samples: Samples, pods: int) -> None:
    await parts.proxy(side, samples)
    if pods:
        parts.encodings(pods, samples)


def _push(address: str, folder: Path) -> None:
    images.push(address, IMAGE.partition("/")[2], images.busybox())
    pause = images.PushedImage([layers.pause(folder)], {"Entrypoint": ["/pause"]})
    images.push(address, PAUSE.partition("/")[2], pause)


async def _one_by_one(
    running: Mapping[str, Side], pulled: Mapping[str, str], pods: int
) -> dict[str, Samples]:
    """The sides take turns: a busy moment of the machine affects both."""
    samples = {name: Samples() for name in running}
    for number in range(-_WARM_UP, pods):
        for name, side in running.items():
            kept = samples[name] if number >= 0 else Samples()
            await one_pod(side.client, pulled[name], f"pod-{number + _WARM_UP}", kept)
            await plugins.once(side.networks, kept)
    return samples


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
