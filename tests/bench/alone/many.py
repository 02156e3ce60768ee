"""Cost of an idle node with many pods, and latency for its operators.

``python -m tests.bench.alone.many [--pods 250] [--seconds 60]``, as root: prints the daemons' memory and CPU
time while pods only sleep, and the medians of ``protect zone list``, of ``protect zone top`` beyond its own
interval, and of a scrape of each daemon's metrics.  The times are of whole processes, including Python's
start; a separate row has Python's start.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.request import urlopen

from tests.bench import memory, sides
from tests.bench.measure import Crowd
from tests.bench.sides import Side
from tests.support.observe.prometheus import metrics_address
from tools.localnode import images, registry

_HOST = "bench.example"
_IMAGE = f"{_HOST}/debian/busybox:1"
_AT_ONCE = 10
_ROUNDS = 7
_INTERVAL = 0.5
_MIB = 1 << 20
_SETTINGS = '[metrics]\naddress = "127.0.0.1:0"\n'


async def main(pods: int, seconds: float) -> None:
    folder = Path(tempfile.mkdtemp(prefix="xenpod-many-"))
    try:
        async with registry.serve_registry(folder / "registry") as address:
            await asyncio.to_thread(images.push, address, _IMAGE.partition("/")[2], images.busybox())
            async with sides.ours(folder / "n", address, _HOST, _SETTINGS) as side:
                await _measure(side, folder / "n", pods, seconds)
    finally:
        shutil.rmtree(folder)


async def _measure(side: Side, node: Path, pods: int, seconds: float) -> None:
    image = await side.client.pull(_IMAGE)
    _line("memory of the daemons without pods", memory.of(side.daemons).pss / _MIB, "MiB")
    crowds = [Crowd(side.client, image, _AT_ONCE) for _ in range(pods // _AT_ONCE)]
    try:
        for crowd in crowds:
            await crowd.start()
        _line(f"with {pods} of them", memory.of(side.daemons).pss / _MIB, "MiB")
        begun = memory.cpu_seconds(side.daemons)
        await asyncio.sleep(seconds)  # the measured time: no requests
        _line(
            "CPU of the daemons then", (memory.cpu_seconds(side.daemons) - begun) / seconds * 100, "% of one"
        )
        for name, ask in _questions(node).items():
            _line(name, await asyncio.to_thread(_median, ask), "ms")
    finally:
        for crowd in crowds:
            await crowd.stop()


def _questions(node: Path) -> Mapping[str, Callable[[], float]]:
    socket = str(node / "run/protect/protect.sock")
    command = [sys.executable, "-m", "protectctl"]
    top = ["--interval", str(_INTERVAL), "--count", "1"]
    logs = sorted(path for path in (node / "log").iterdir() if "serving metrics" in path.read_text())
    return {
        "protect --version": _run([*command, "--version"]),
        "protect zone list": _run([*command, "zone", "list", "--socket", socket]),
        "protect zone top": _run([*command, "zone", "top", "--socket", socket, *top], _INTERVAL),
        **{f"scrape of {log.stem}": _scrape(metrics_address(log)) for log in logs},
    }


def _run(command: list[str], less: float = 0.0) -> Callable[[], float]:
    def run() -> float:
        begun = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - begun - less

    return run


def _scrape(address: str) -> Callable[[], float]:
    def scrape() -> float:
        begun = time.perf_counter()
        with urlopen(f"http://{address}/metrics", timeout=60) as reply:
            reply.read()
        return time.perf_counter() - begun

    return scrape


def _median(ask: Callable[[], float]) -> float:
    return statistics.median(ask() for _ in range(_ROUNDS)) * 1000


def _line(name: str, value: float, unit: str) -> None:
    sys.stdout.write(f"{name:40}{value:9.1f} {unit}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="tests.bench.alone.many", description=__doc__)
    parser.add_argument("--pods", type=int, default=250)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.pods, arguments.seconds))
