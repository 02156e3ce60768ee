"""What metrics, traces and the audit log add to a pod's start: nodes with and without them, in turns.

``python -m tests.bench.alone.observed [PODS]``, as root: prints medians, the shares added, and the daemons'
CPU time and memory; nothing is asserted.  Traces go to a collector in this process; every call is traced.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.request import urlopen

from localnode import images, registry
from tests.bench import memory, sides
from tests.bench.measure import FULL, Samples, one_pod
from tests.bench.sides import Side
from tests.support.observe.collector import collecting
from tests.support.observe.prometheus import metrics_address

_HOST = "bench.example"
_IMAGE = f"{_HOST}/debian/busybox:1"
_WARM_UP = 3
_STEPS = ("RunPodSandbox", "CreateContainer", "StartContainer", FULL)
PLAIN = "none"

_METRICS = '[metrics]\naddress = "127.0.0.1:0"\n'
_TRACES = '[traces]\nendpoint = "{endpoint}"\nsampling = 1.0\n'
_AUDIT = '[audit]\nto = "file"\n'


async def main(pods: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="xenpod-observed-"))
    try:
        async with AsyncExitStack() as stack:
            address = await stack.enter_async_context(registry.serve(folder / "registry"))
            await asyncio.to_thread(images.push, address, _IMAGE.partition("/")[2], images.busybox())
            collector = await stack.enter_async_context(collecting())
            traces = _TRACES.format(endpoint=collector.endpoint)
            ways = {
                PLAIN: "",
                "metrics": _METRICS,
                "metrics, traces": _METRICS + traces,
                "metrics, traces, audit": _METRICS + traces + _AUDIT,
            }
            running = {
                name: await stack.enter_async_context(sides.ours(folder / str(n), address, _HOST, settings))
                for n, (name, settings) in enumerate(ways.items())
            }
            samples, cpu = await _in_turns(running, pods)
            show(samples, cpu, running, pods)
            logs = (folder / "1" / "log").glob("*")
            scraped = await asyncio.to_thread(
                _scrape, [path for path in logs if "serving metrics" in path.read_text()]
            )
            sys.stdout.write(f"{scraped}; {len(collector.spans)} spans received\n")
    finally:
        shutil.rmtree(folder)


async def _in_turns(running: Mapping[str, Side], pods: int) -> tuple[dict[str, Samples], dict[str, float]]:
    """A busy moment of the machine meets all; the order changes, as who comes first may pay for the last."""
    pulled = {name: await side.client.pull(_IMAGE) for name, side in running.items()}
    samples, cpu = {name: Samples() for name in running}, dict.fromkeys(running, 0.0)
    names = list(running)
    for number in range(-_WARM_UP, pods):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            side = running[name]
            begun = memory.cpu_seconds(side.daemons)
            kept = samples[name] if number >= 0 else Samples()
            await one_pod(side.client, pulled[name], f"pod-{number + _WARM_UP}", kept)
            cpu[name] += memory.cpu_seconds(side.daemons) - begun if number >= 0 else 0.0
    return samples, cpu


def show(
    samples: Mapping[str, Samples], cpu: Mapping[str, float], running: Mapping[str, Side], pods: int
) -> None:
    """Print a row for each way."""
    plain = samples[PLAIN].seconds
    for name, one in samples.items():
        parts = []
        for step in _STEPS:
            (low, median, _), (was_low, was, _) = (
                statistics.quantiles(x[step], n=4) for x in (one.seconds, plain)
            )
            more = f"{median / was - 1:+.1%}, lower quartiles {low / was_low - 1:+.1%}"
            parts.append(f"{step} {median * 1000:.1f} ms ({more})")
        used = memory.of(running[name].daemons).pss / (1 << 20)
        parts.append(f"CPU of a pod's life {cpu[name] / pods * 1000:.0f} ms, daemons {used:.0f} MiB")
        sys.stdout.write(f"{name}: {'; '.join(parts)}\n")


def _scrape(logs: list[Path]) -> str:
    sizes = []
    for log in logs:
        with urlopen(f"http://{metrics_address(log)}/metrics", timeout=10) as reply:
            sizes.append(f"{log.name}: {len(reply.read())} bytes a scrape")
    return ", ".join(sizes)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 40))
