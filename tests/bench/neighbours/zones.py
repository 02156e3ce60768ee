"""Effect of hostile zones on an honest pod: its start, execs and statistics alone and beside them, in one
run.

All calls are CRI's, to one pair of daemons.  Each kind of neighbour is idle and hostile in turns, for
``seconds`` in all: the ratio is the cost of hostility, because other work on the machine affects both.
Memory of a daemon is its maximum during hostility, less its memory before.

Pods have the ``cpu_shares`` of a kubelet: honest pods request 100m, hostile pods nothing.  With ``--equal``
no pod has shares, and each zone weighs like a zone with a request for a whole CPU.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
from rich.console import Console
from rich.table import Table

from tests.bench import memory, sides
from tests.bench.measure import Samples
from tests.bench.neighbours.hostile import Ground, Mix, Requests, hostile, mixes
from tests.bench.report import percentile
from tools.localnode import images, layers, registry
from tools.localnode.cri_client import Client, Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

HOST = "registry.bench"
START, EXEC, STATS = "start of a pod", "exec", "statistics"
STEPS = (START, EXEC, STATS)
GOALS = {50: 2.0, 99: 3.0}
"""Of the ratios, by percentile."""
_IMAGE = f"{HOST}/busybox:1"
_PULLS = 3
SECONDS = 40.0
"""For each kind; the start of a pod at every fourth exec then makes about as many samples as p99 needs."""
_HALF = 2.0
"""Approximate seconds of a hostile or an idle phase."""
_CALLS_A_START = 4
_PAUSE = 0.02
_LOG_LIMIT = 32 << 20
_TIMEOUT = 120.0
_HEADERS = 40_000
_ZEROS = 64 << 20
_WARM = 1.0
_QUIET = ("sleep", "36000")


@dataclass(frozen=True, slots=True)
class Beside:
    """An honest pod's samples beside idle and beside hostile neighbours.

    ``grown``: bytes by which each daemon grew.
    """

    neighbours: str
    alone: Samples
    hostile: Samples
    grown: Sequence[int]


async def measure(
    folder: Path, most: int, seconds: float = SECONDS, only: str = "", requests: Requests | None = None
) -> list[Beside]:
    """Beside each kind of neighbour, then beside all, at least ``most`` zones; ``only``: filter of names."""
    folder.mkdir(parents=True)
    async with registry.serve_registry(folder / "registry") as address:
        pulls = await asyncio.to_thread(_push, address)
        settings = 'log_level = "info"\n'
        async with sides.ours(folder / "x", address, HOST, settings) as side:
            image = await side.client.pull(_IMAGE)
            ground = Ground(side, (folder / "x").resolve(), image, pulls, requests or Requests())
            chosen = [mix for mix in mixes(most) if only in mix.name]
            return [await _in_time(ground, mix, seconds) for mix in chosen]


def _push(address: str) -> list[str]:
    """The image of the honest pod, and names of images for hostile pulls.

    Each layer is small on the way: many empty files, and zeros.
    """
    images.push(address, _IMAGE.partition("/")[2], images.busybox())
    found = []
    for number in range(_PULLS):
        entries = [layers.LayerEntry(f"d{number}/{n:06}", content=b"") for n in range(_HEADERS)]
        zeros = layers.layer(layers.LayerEntry(f"zeros{number}", content=bytes(_ZEROS)))
        images.push(address, f"hostile:{number}", images.PushedImage([layers.layer(*entries), zeros]))
        found.append(f"{HOST}/hostile:{number}")
    return found


async def _in_time(ground: Ground, mix: Mix, seconds: float) -> Beside:
    """RuntimeError: a call takes too long."""
    limit = 4 * seconds + _TIMEOUT
    try:
        async with asyncio.timeout(limit):
            return await _beside(ground, mix, seconds)
    except TimeoutError as error:
        raise RuntimeError(f"beside {mix.name} nothing was measured within {limit:.0f} s") from error


async def _beside(ground: Ground, mix: Mix, seconds: float) -> Beside:
    alone, beside = Samples(), Samples()
    protectd, xenpod_cri = ground.side.daemons
    async with _honest(ground) as honest:
        await honest.sample(_WARM, Samples())
        with memory.Peak([protectd]) as peak, memory.Peak([xenpod_cri]) as other:
            before = [memory.of([pid]).rss for pid in (protectd, xenpod_cri)]
            async with hostile(ground, mix) as neighbours:
                rounds = max(1, round(seconds / (2 * _HALF)))
                for _ in range(rounds):
                    await honest.sample(seconds / (2 * rounds), beside)
                    await neighbours.stand_still()
                    await honest.sample(seconds / (2 * rounds), alone)
                    await neighbours.go_on()
    return Beside(mix.name, alone, beside, [peak.bytes - before[0], other.bytes - before[1]])


@asynccontextmanager
async def _honest(ground: Ground) -> AsyncIterator[_Honest]:
    """The honest pod, while the block runs."""
    honest = _Honest(ground)
    await honest.begin()
    try:
        yield honest
    finally:
        await honest.end()


class _Honest:
    """A pod, its neighbours, and their clients."""

    def __init__(self, ground: Ground) -> None:
        self._client: Client = ground.side.client
        self._ground = ground
        self._numbers = itertools.count()
        self._pod = self._container = ""
        self._logs: dict[str, Path] = {}

    async def begin(self) -> None:
        pod = await self._run("honest")
        self._pod = pod.id
        self._container = await self._client.create(pod, self._ground.image, _QUIET)
        await self._client.start(self._container)

    async def end(self) -> None:
        await self._client.remove_pod(self._pod)

    async def sample(self, seconds: float, samples: Samples) -> None:
        """Execs and questions, and some starts; at a pace that needs a small part of the machine."""
        everybody = asyncio.ensure_future(self._ask_everybody())
        until = time.monotonic() + seconds
        try:
            for number in itertools.count():
                if number and time.monotonic() >= until:
                    break
                await asyncio.sleep(_PAUSE)
                await samples.time(STATS, self._stats())
                await asyncio.sleep(_PAUSE)
                output = await samples.time(EXEC, self._client.exec(self._container, "true"))
                if output.exit_code:
                    raise RuntimeError(f"an exec ended with {output.exit_code}: {output.stderr!r}")
                if number % _CALLS_A_START == 0:
                    await asyncio.sleep(_PAUSE)
                    pod = await samples.time(START, self._start())
                    await self._client.remove_pod(pod)
        finally:
            everybody.cancel()
            with suppress(asyncio.CancelledError):
                await everybody

    async def _start(self) -> str:
        pod = await self._run(f"honest-{next(self._numbers)}")
        container = await self._client.create(pod, self._ground.image, _QUIET)
        await self._client.start(container)
        return pod.id

    async def _run(self, name: str) -> Pod:
        return await self._client.run_pod(name, cpu_shares=self._ground.requests.honest)

    async def _stats(self) -> None:
        request = cri.PodSandboxStatsRequest(pod_sandbox_id=self._pod)
        await self._client.runtime.PodSandboxStats(request, timeout=_TIMEOUT)

    async def _ask_everybody(self) -> None:
        """Like the kubelet, only more often; also rotates logs."""
        while True:
            await self._client.runtime.ListPodSandboxStats(cri.ListPodSandboxStatsRequest(), timeout=_TIMEOUT)
            reply = await self._client.runtime.ListContainers(cri.ListContainersRequest(), timeout=_TIMEOUT)
            for container in reply.containers:
                await self._rotate(container.id)
            await asyncio.sleep(1.0)

    async def _rotate(self, container: str) -> None:
        """Start a new log.  The old bytes are freed in a thread, because the disk may be slow."""
        path = await self._log_of(container)
        old = path.with_suffix(".old")
        with suppress(OSError, grpc.aio.AioRpcError):  # the container may have gone
            if path.stat().st_size > _LOG_LIMIT:
                path.rename(old)
                reopen = cri.ReopenContainerLogRequest(container_id=container)
                await self._client.runtime.ReopenContainerLog(reopen, timeout=_TIMEOUT)
                await asyncio.to_thread(old.unlink)

    async def _log_of(self, container: str) -> Path:
        if container not in self._logs:
            request = cri.ContainerStatusRequest(container_id=container)
            try:
                reply = await self._client.runtime.ContainerStatus(request, timeout=_TIMEOUT)
            except grpc.aio.AioRpcError:
                return Path("/nowhere")
            self._logs[container] = Path(reply.status.log_path)
        return self._logs[container]


def show(found: Sequence[Beside], console: Console) -> None:
    """Milliseconds alone and beside hostile neighbours, and the second as a multiple of the first."""
    for percent, goal in GOALS.items():
        title = f"an honest pod, p{percent}, ms alone and beside hostile zones (goal: {goal:g} times)"
        table = Table(title=title, title_justify="left", title_style="bold", box=None)
        table.add_column("neighbours", min_width=30)
        for step in STEPS:
            table.add_column(step, justify="right")
            table.add_column("ratio", justify="right", style="bold")
        for beside in found:
            row = [beside.neighbours]
            for step in STEPS:
                alone, there = (
                    percentile(samples.seconds[step], percent) * 1000
                    for samples in (beside.alone, beside.hostile)
                )
                row += [f"{alone:.1f} to {there:.1f}", f"{there / alone:.2f}"]
            table.add_row(*row)
        console.print(table)
    table = Table(title="the daemons grew, MiB", title_justify="left", title_style="bold", box=None)
    table.add_column("neighbours", min_width=30)
    for name in ("protectd", "xenpod-cri"):
        table.add_column(name, justify="right")
    for beside in found:
        table.add_row(beside.neighbours, *(f"{grown / 2**20:.0f}" for grown in beside.grown))
    console.print(table)
