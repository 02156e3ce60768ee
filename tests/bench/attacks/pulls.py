"""Pulls from hostile registries: each attacker is a registry, and has its images pulled."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, suppress

import grpc.aio
import requests

from tests.bench.attacks import entries, registries
from tests.bench.attacks.again import again
from tests.bench.attacks.ground import EACH, AttackGround
from tests.bench.attacks.registries import Reply, ServedImage
from tools.localnode.cri_client import Client
from tools.localnode.images import MANIFEST

ENTRIES = 900_000
_SLOW_AT_ONCE = 5
"""Together 40; 33 of them filled the pulls of a whole node."""
_TIMEOUT = 60


async def challenges(ground: AttackGround) -> None:
    await _pull(ground, [registries.challenge] * EACH)


async def continues(ground: AttackGround) -> None:
    await _pull(ground, [registries.go_on] * EACH)


async def long_manifests(ground: AttackGround) -> None:
    await _pull(ground, [registries.long_manifest] * EACH)


async def slow_manifests(ground: AttackGround) -> None:
    await _pull(ground, [registries.slow_manifest] * EACH, _SLOW_AT_ONCE)


async def hostages(ground: AttackGround) -> None:
    """Honest images of other tenants, with slow layers."""
    names = list(itertools.islice(itertools.cycle(ground.honest), EACH))
    await _pull(ground, await asyncio.to_thread(lambda: list(map(_copy, [ground.registry] * EACH, names))))


async def many_entries(ground: AttackGround) -> None:
    await _pull(ground, await asyncio.to_thread(lambda: list(_crowded(ENTRIES))))


async def _pull(ground: AttackGround, replies: Sequence[Reply], at_once: int = 1) -> None:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(ground.client())
        attackers = []
        for reply in replies:
            place = await stack.enter_async_context(registries.serving(reply))
            for number in range(at_once):
                attackers.append(again(functools.partial(_once, client, f"{place}/t/x{number}:1")))
        await asyncio.gather(*attackers)


async def _once(client: Client, name: str) -> None:
    # Like the kubelet: the pods of all attackers are of one namespace.
    await client.pull(name, "hostile")
    with suppress(grpc.aio.AioRpcError):
        await client.remove_image(name)


def _copy(registry: str, name: str) -> ServedImage:
    repository, _, tag = name.partition(":")
    base = f"http://{registry}/v2/{repository}"
    asked = requests.get(f"{base}/manifests/{tag}", headers={"Accept": MANIFEST}, timeout=_TIMEOUT)
    asked.raise_for_status()
    document = json.loads(asked.content)
    blobs = {}
    for described in (document["config"], *document["layers"]):
        answer = requests.get(f"{base}/blobs/{described['digest']}", timeout=_TIMEOUT)
        answer.raise_for_status()
        blobs[described["digest"]] = answer.content
    return ServedImage(asked.content, blobs, slowly=True)


def _crowded(count: int) -> Iterator[ServedImage]:
    for blob, diff_id in entries.layers(EACH, count):
        yield registries.of_layer(blob, diff_id)
