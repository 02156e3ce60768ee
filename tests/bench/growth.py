"""Measures how the start and end of a pod slow down with the number of other pods."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

from tests.bench import plugins
from tests.bench.measure import FULL, STOP, Samples, one_pod
from tests.bench.sides import Side

_AT_ONCE = 8
_IDLE = ("sleep", "36000")
PARTS = {FULL: plugins.ADD, STOP: plugins.DEL}
"""The steps that include work of the CNI plugins, with that work."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A side's samples with no other pods there, and with ``others``."""

    others: int
    alone: Samples
    among: Samples


async def measure(
    running: Mapping[str, Side], images: Mapping[str, str], pods: int, others: int
) -> dict[str, Growth]:
    """The lives of ``pods`` pods, one after another, on each side in turn: alone, and among ``others``."""
    alone = await _lives(running, images, pods, "alone")
    async with AsyncExitStack() as stack:
        for name, side in running.items():
            crowd = Others(side, images[name])
            stack.push_async_callback(crowd.remove)
            await crowd.start(others)
        among = await _lives(running, images, pods, "among")
    return {name: Growth(others, alone[name], among[name]) for name in running}


async def _lives(
    running: Mapping[str, Side], images: Mapping[str, str], pods: int, prefix: str
) -> dict[str, Samples]:
    samples = {name: Samples() for name in running}
    for number in range(-1, pods):
        for name, side in running.items():
            kept = samples[name] if number >= 0 else Samples()
            await one_pod(side.client, images[name], f"{prefix}-{number + 1}", kept)
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
        # All of them to their end: a pod that comes after a failure must be known to remove().
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
