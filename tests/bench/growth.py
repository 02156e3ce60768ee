"""Measures how the start and end of a pod slow down with the number of other pods."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from tests.bench import plugins
from tests.bench.measure import FULL, STOP, Samples, one_pod
from tests.bench.sides import Side

_AT_ONCE = 8
_IDLE = ("sleep", "36000")
PARTS = {FULL: plugins.ADD, STOP: plugins.DEL}
"""Steps with work of the CNI plugins, including their work."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A side's samples without other pods, and with ``others``."""

    others: int
    alone: Samples
    among: Samples


async def measure(
    running: Mapping[str, Side], images: Mapping[str, str], pods: int, others: int
) -> dict[str, Growth]:
    """The lives of ``pods`` pods in sequence: alone, then among ``others``; one side after the other.

    Only one side has others at a time: otherwise each side would pay for the other's mounts and interfaces.
    """
    found = {}
    for name, side in running.items():
        alone = await _lives(side, images[name], pods, "alone")
        crowd = Others(side, images[name])
        try:
            await crowd.start(others)
            found[name] = Growth(others, alone, await _lives(side, images[name], pods, "among"))
        finally:
            await crowd.remove()
    return found


async def _lives(side: Side, image: str, pods: int, prefix: str) -> Samples:
    samples = Samples()
    for number in range(-1, pods):
        kept = samples if number >= 0 else Samples()
        await one_pod(side.client, image, f"{prefix}-{number + 1}", kept)
        await plugins.once(side.networks, kept)
    return samples


class Others:
    """Idle pods with a container each."""

    def __init__(self, side: Side, image: str) -> None:
        self._client = side.client
        self._image = image
        self._pods: list[str] = []
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def start(self, count: int) -> None:
        ones = [asyncio.ensure_future(self._one(number)) for number in range(count)]
        # Run all pods to their end: remove() must know a pod that comes after a failure.
        await asyncio.wait(ones)
        for one in ones:
            one.result()

    async def remove(self) -> None:
        await asyncio.gather(*map(self._remove, self._pods))

    async def _one(self, number: int) -> None:
        async with self._slots:
            pod = await self._client.run_pod(f"other-{number}")
            self._pods.append(pod.id)
            container = await self._client.create(pod, self._image, _IDLE)
            await self._client.start(container)

    async def _remove(self, pod: str) -> None:
        async with self._slots:
            await self._client.remove_pod(pod)
