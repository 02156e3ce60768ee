"""Starts attackers on a node, each kind in a separate process, and ends them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc.aio

from tests.bench import memory
from tests.bench.attacks.ground import EACH, AttackGround
from tests.bench.attacks.kinds import KINDS
from tools.localnode import images, layers
from tools.localnode.cri_client import Client

ROOT = Path(__file__).parents[3]
SHARES = 2
"""``cpu_shares`` of a pod without requests, as a kubelet gives them."""
_BEGIN, _LAST_WORDS, _REMOVAL = 120.0, 5.0, 60.0
_QUIET = ("sleep", "36000")
_PULL_BYTES = 1 << 20
"""Of an honest image: a layer that trickles at 2 KiB a second lasts longer than a row of the benchmark."""


@dataclass
class Attackers:
    """Attackers of some kinds.  ``outcomes``: results of their calls, by kind, after their end."""

    client: Client
    pods: list[str]
    outcomes: dict[str, Mapping[str, int]] = field(default_factory=dict)
    _processes: dict[str, Process] = field(default_factory=dict)

    def cpu_seconds(self) -> float:
        """CPU time of the attackers' processes, without their pods."""
        return memory.cpu_seconds([process.pid for process in self._processes.values()])

    async def begin(self, kind: str, ground: AttackGround) -> None:
        """Return as soon as the attack runs."""
        command = (sys.executable, "-m", "tests.bench.attacks", kind, ground.encode())
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, cwd=ROOT, limit=1 << 20
        )
        self._processes[kind] = process
        assert process.stdout is not None
        async with asyncio.timeout(_BEGIN):
            if not await process.stdout.readline():
                raise RuntimeError(f"attackers of the kind {kind!r} ended before they began")

    async def end(self) -> None:
        """Collect the outcomes, as far as processes answer in time, and kill the processes.  Pods stay."""
        await asyncio.gather(*(self._end(kind, process) for kind, process in self._processes.items()))
        self._processes.clear()

    async def remove_pods(self) -> None:
        """As far as the node answers in a limited time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_REMOVAL):
                await asyncio.gather(*map(self._remove, self.pods))

    async def _end(self, kind: str, process: Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                said = await process.stdout.readline()
                if not said:
                    raise RuntimeError(f"attackers of the kind {kind!r} failed")
                pods, self.outcomes[kind] = json.loads(said)
                self.pods += pods
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    async def _remove(self, pod: str) -> None:
        with suppress(grpc.aio.AioRpcError):
            await self.client.remove_pod(pod)


def push_honest(address: str) -> list[str]:
    """Push images for honest tenants; returns their names at the registry."""
    names = [f"honest:{number}" for number in range(EACH)]
    for name in names:
        content = os.urandom(_PULL_BYTES)
        images.push(
            address, name, images.PushedImage([layers.layer(layers.LayerEntry("x", content=content))])
        )
    return names


@asynccontextmanager
async def tenants(
    base: AttackGround, client: Client, image: str, kinds: Sequence[str]
) -> AsyncIterator[tuple[Attackers, Mapping[str, AttackGround]]]:
    """The pods of attackers, and the input of each kind; the block's end removes both."""
    attackers = Attackers(client, [])
    async with AsyncExitStack() as stack:
        stack.push_async_callback(attackers.remove_pods)
        stack.push_async_callback(attackers.end)
        grounds = {}
        for number, kind in enumerate(kinds):
            grounds[kind] = base
            if KINDS[kind].pods:
                names = [f"tenant-{number}-{n}" for n in range(EACH)]
                made = await asyncio.gather(*(_tenant(attackers, image, name) for name in names))
                pods, containers = zip(*made, strict=True)
                grounds[kind] = replace(base, pods=pods, containers=containers)
        yield attackers, grounds


async def _tenant(attackers: Attackers, image: str, name: str) -> tuple[str, str]:
    client = attackers.client
    pod = await client.run_pod(name, cpu_shares=SHARES)
    attackers.pods.append(pod.id)
    container = await client.create(pod, image, _QUIET)
    await client.start(container)
    return pod.id, container
