"""Cost of metrics, traces and the audit log in a pod's start: nodes with and without them, in turns.

``python -m tests.bench.alone.observed``, as root: prints medians, the cost of each with a 95% interval, and
the daemons' CPU time and memory; the benchmark asserts nothing.  It runs on the fake toolstack, or within a
Xen dom0 on libxl; ``--nested`` boots a dom0 in QEMU. The comparison is with a pod just before or after,
without the feature.  On a busy machine CPU time, in nanoseconds by the kernel's count, is more reliable than
time.  Traces go to a collector in this process; every call is traced.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

from tests.bench import memory, sides
from tests.bench.sides import Side
from tests.support.observe.collector import collecting
from tests.support.observe.prometheus import metrics_address
from tests.xen import nested
from tools.localnode import images, registry

_HOST = "bench.example"
_IMAGE = f"{_HOST}/debian/busybox:1"
_WARM_UP = 3
_EXECS = 3
_DRAWS = 2000
PLAIN = "none"

_METRICS = '[metrics]\naddress = "127.0.0.1:0"\n'
_TRACES = '[traces]\nendpoint = "{endpoint}"\nsampling = 1.0\n'
_AUDIT = '[audit]\nto = "file"\n'
_ON_XEN = """[profiles.default]
memory = "128MiB"
mode = "pv"
[timeouts]
boot = "300s"
call = "120s"
"""
_POD_SECONDS = 60.0
"""Maximum for a pod's life in QEMU."""


@dataclass(slots=True)
class Observed:
    """For each pod, in ms: duration of its start, and the CPU time of the daemons."""

    start: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    begun: int = 0
    life: float = 0.0
    """Average CPU time of a pod's life (start, execs, end), with the daemons' other work."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.alone.observed", description=__doc__)
    parser.add_argument("--pods", type=int, default=40, help="of each way")
    parser.add_argument("--nested", action="store_true", help="boot Xen in QEMU, and measure there")
    options = parser.parse_args()
    if options.nested:
        return _nested(options.pods)
    asyncio.run(_compare(options.pods))
    return 0


def _nested(pods: int) -> int:
    deadline = 600.0 + 4 * (pods + _WARM_UP) * _POD_SECONDS
    return nested.run_module("tests.bench.alone.observed", "--pods", str(pods), deadline=deadline)


async def _compare(pods: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="xenpod-observed-"))
    try:
        async with AsyncExitStack() as stack:
            address = await stack.enter_async_context(registry.serve_registry(folder / "registry"))
            await asyncio.to_thread(images.push, address, _IMAGE.partition("/")[2], images.busybox())
            collector = await stack.enter_async_context(collecting())
            traces = _TRACES.format(endpoint=collector.endpoint)
            ways = {
                PLAIN: "",
                "metrics": _METRICS,
                "metrics, traces": _METRICS + traces,
                "metrics, traces, audit": _METRICS + traces + _AUDIT,
            }
            xen = Path("/proc/xen/privcmd").exists()
            protectd, toolstack = (_ON_XEN, "libxl") if xen else (sides.ON_FAKE, "fake")
            running = {
                name: await stack.enter_async_context(
                    sides.ours(
                        folder / str(n), address, _HOST, settings, protectd=protectd, toolstack=toolstack
                    )
                )
                for n, (name, settings) in enumerate(ways.items())
            }
            show(await _in_turns(running, pods), running)
            logs = (folder / "1" / "log").glob("*")
            scraped = await asyncio.to_thread(
                _scrape, [path for path in logs if "serving metrics" in path.read_text()]
            )
            sys.stdout.write(f"{scraped}; {len(collector.spans)} spans received\n")
    finally:
        shutil.rmtree(folder)


async def _in_turns(running: Mapping[str, Side], pods: int) -> dict[str, Observed]:
    """A pod on each node in turn, again and again: a busy moment of the machine affects all nodes.

    The order changes, because the first may pay for the last.
    """
    pulled = {name: await side.client.pull(_IMAGE) for name, side in running.items()}
    found = {name: Observed() for name in running}
    names = list(running)
    for number in range(-_WARM_UP, pods):
        if number == 0:
            for name, side in running.items():
                found[name].begun = memory.cpu_ns(side.daemons)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            kept = found[name] if number >= 0 else Observed()
            await _one(running[name], pulled[name], f"pod-{number + _WARM_UP}", kept)
    for name, side in running.items():
        # With the daemons' work beside calls: spans are sent every few seconds.
        found[name].life = (memory.cpu_ns(side.daemons) - found[name].begun) / 1e6 / pods
    return found


async def _one(side: Side, image: str, name: str, kept: Observed) -> None:
    """A pod's whole life."""
    cpu, begun = memory.cpu_ns(side.daemons), time.perf_counter_ns()
    pod = await side.client.run_pod(name)
    try:
        container = await side.client.create(pod, image, ("sleep", "3600"))
        await side.client.start(container)
        kept.start.append((time.perf_counter_ns() - begun) / 1e6)
        kept.cpu.append((memory.cpu_ns(side.daemons) - cpu) / 1e6)
        for _ in range(_EXECS):
            await side.client.exec(container, "true")
    finally:
        await side.client.remove_pod(pod.id)


def show(found: Mapping[str, Observed], running: Mapping[str, Side]) -> None:
    """Print a row for each way: medians, and the difference to the same round's pod without the feature."""
    plain = found[PLAIN]
    usual = statistics.median(plain.start)
    for name, one in found.items():
        used = memory.of(running[name].daemons).pss / (1 << 20)
        parts = [
            f"start {statistics.median(one.start):.1f} ms",
            f"CPU of the daemons in it {statistics.median(one.cpu):.1f} ms",
            f"and in a pod's life {one.life:.1f} ms",
            f"memory {used:.0f} MiB",
        ]
        if one is not plain:
            parts += [
                f"start {_added(one.start, plain.start, usual)}",
                f"CPU of the start {_added(one.cpu, plain.cpu, usual)}",
                f"CPU of a life {one.life - plain.life:+.1f} ms",
            ]
        sys.stdout.write(f"{name}: {'; '.join(parts)}\n")


def _added(with_it: Sequence[float], without: Sequence[float], usual: float) -> str:
    """Median of each round's difference with its interval, as shares of a usual start."""
    more = [a - b for a, b in zip(with_it, without, strict=True)]
    low, high = interval(more)
    return f"{statistics.median(more) / usual:+.1%} ({low / usual:+.1%} to {high / usual:+.1%}) of a start"


def interval(values: Sequence[float], share: float = 0.95) -> tuple[float, float]:
    """The interval of the median's confidence, by the bootstrap: medians of samples drawn from the sample."""
    chance = random.Random(1)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(_DRAWS))
    cut = round(_DRAWS * (1 - share) / 2)
    return medians[cut], medians[-1 - cut]


def _scrape(logs: list[Path]) -> str:
    sizes = []
    for log in logs:
        with urlopen(f"http://{metrics_address(log)}/metrics", timeout=10) as reply:
            sizes.append(f"{log.name}: {len(reply.read())} bytes a scrape")
    return ", ".join(sizes)


if __name__ == "__main__":
    sys.exit(main())
