"""Measures calls to containerd through xenpod-cri and directly, in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sized

from tests.bench.measure import Crowd, Samples, one_pod
from tests.bench.reading import READS
from tests.bench.sides import Side
from tools.localnode.cri_client import Client

THROUGH, DIRECT = "through xenpod-cri", "direct"
LISTS: Mapping[str, str] = {"ListPodSandbox": "items", "ListContainers": "containers"}
"""The field of each answer with the pods or containers."""
STEPS = ("RunPodSandbox", "ExecSync", *LISTS)
"""The reported steps."""
_ROUNDS = 300
_WARM_UP = 3


def settings(theirs: Side) -> str:
    """The end of a cri.toml that gives all ordinary pods to the other runtime."""
    return f'[delegate]\nendpoint = "unix://{theirs.socket}"\ndefault = "delegate"\nnamespaces = ["*"]\n'


async def measure(ways: Mapping[str, Client], image: str, pods: int, listed: int) -> dict[str, Samples]:
    """Seconds of each step: ``pods`` pods in sequence, then lists of ``listed`` pods."""
    samples = {name: Samples() for name in ways}
    await _one_by_one(ways, image, pods, samples)
    crowd = Crowd(ways[DIRECT], image, listed)
    try:
        await crowd.start()
        await _lists(ways, listed, samples)
    finally:
        await crowd.stop()
    return samples


def named(samples: Mapping[str, Samples]) -> Samples:
    """The reported figures of one side."""
    return Samples({figure(step, way): side.seconds[step] for way, side in samples.items() for step in STEPS})


def figure(step: str, way: str) -> str:
    """The name of a figure of ``named``."""
    return f"{step}, {way}"


async def _one_by_one(
    ways: Mapping[str, Client], image: str, pods: int, samples: Mapping[str, Samples]
) -> None:
    for number in range(-_WARM_UP, pods):
        for name, client in ways.items():
            kept = samples[name] if number >= 0 else Samples()
            await one_pod(client, image, f"passed-{number + _WARM_UP}", kept)


async def _lists(ways: Mapping[str, Client], listed: int, samples: Mapping[str, Samples]) -> None:
    for step in LISTS:
        for number in range(-_WARM_UP, _ROUNDS):
            for name, client in ways.items():
                kept = samples[name] if number >= 0 else Samples()
                answer = await kept.time(step, READS[step](client, ""))
                found: Sized = getattr(answer, LISTS[step])
                if len(found) != listed:
                    raise RuntimeError(f"{name}: {step} has {len(found)} of {listed}")
