"""Measures steps through CRI, the same for each runtime."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

from tools.localnode.cri_client import Client

T = TypeVar("T")

FULL = "full pod start"
STOP = "stop+remove pod"
STEPS = (
    "RunPodSandbox",
    "CreateContainer",
    "StartContainer",
    FULL,
    "ExecSync",
    "stop+remove container",
    STOP,
)
_IDLE = ("sleep", "3600")
_EXECS = 3


@dataclass(slots=True)
class Samples:
    """Samples in seconds, by step."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    async def time(self, step: str, work: Awaitable[T]) -> T:
        begun = time.perf_counter()
        result = await work
        self.seconds[step].append(time.perf_counter() - begun)
        return result


@dataclass(frozen=True, slots=True)
class Burst:
    """Pods started at once: seconds until the last pod ran, and until the last pod was gone."""

    pods: int
    start: float
    stop: float
    slowest: float


async def one_pod(client: Client, image: str, name: str, samples: Samples) -> None:
    """Measure a pod's whole life."""
    begun = time.perf_counter()
    pod = await samples.time("RunPodSandbox", client.run_pod(name))
    try:
        container = await samples.time("CreateContainer", client.create(pod, image, _IDLE))
        await samples.time("StartContainer", client.start(container))
        samples.seconds[FULL].append(time.perf_counter() - begun)
        for _ in range(_EXECS):
            output = await samples.time("ExecSync", client.exec(container, "true"))
            if output.exit_code:
                raise RuntimeError(f"exec in {name} ended with {output.exit_code}: {output.stderr!r}")
        await samples.time("stop+remove container", client.remove_container(container))
    finally:
        await samples.time(STOP, client.remove_pod(pod.id))


class Crowd:
    """Pods that start, stay and go together."""

    def __init__(self, client: Client, image: str, count: int, cgroup_parent: str = "") -> None:
        """``cgroup_parent``: parent of a separate group for each pod, as the kubelet has."""
        self._cgroup_parent = cgroup_parent
        self._client = client
        self._image = image
        self._count = count
        self._pods: list[str] = []

    async def start(self) -> tuple[float, float]:
        """Start the pods; returns seconds until all run, and seconds of the slowest."""
        begun = time.perf_counter()
        ones = [asyncio.ensure_future(self._one(number)) for number in range(self._count)]
        # all pods to their end: stop() must know a pod that comes after a failure
        await asyncio.wait(ones)
        return time.perf_counter() - begun, max(one.result() for one in ones)

    async def stop(self) -> float:
        begun = time.perf_counter()
        await asyncio.gather(*(self._client.remove_pod(pod) for pod in self._pods))
        return time.perf_counter() - begun

    async def _one(self, number: int) -> float:
        begun = time.perf_counter()
        parent = f"{self._cgroup_parent}/pod{number}" if self._cgroup_parent else ""
        pod = await self._client.run_pod(f"crowd-{number}", parent)
        self._pods.append(pod.id)
        container = await self._client.create(pod, self._image, _IDLE)
        await self._client.start(container)
        return time.perf_counter() - begun
