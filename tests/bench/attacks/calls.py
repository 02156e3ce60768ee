"""Calls of the kubelet for a hostile tenant: probes with large output, pods with large annotations."""

from __future__ import annotations

import asyncio
import functools
import itertools
from uuid import uuid4

from tests.bench.attacks.again import again
from tests.bench.attacks.ground import EACH, AttackGround
from tools.localnode.cri_client import Client
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_PROBES = 6
"""At once of each attacker: together 48."""
_OUTPUT = ("sh", "-c", "head -c 17000000 /dev/zero")
_ANNOTATION = 255 << 10
"""Bytes; the API server takes 256 KiB for a whole pod."""
MADE: list[str] = []
"""Pods of this process."""
_PODS = 9
"""Pods of each attacker: together 72, with a list larger than the maximum of a message."""


async def probes(ground: AttackGround) -> None:
    async with ground.client() as client:
        asked = [container for container in ground.containers for _ in range(_PROBES)]
        await asyncio.gather(*(again(functools.partial(client.exec, one, *_OUTPUT)) for one in asked))


async def large_annotations(ground: AttackGround) -> None:
    numbers = itertools.count()
    async with ground.client() as client:
        await asyncio.gather(*(_some(client, ground, numbers) for _ in range(EACH)))


async def _some(client: Client, ground: AttackGround, numbers: itertools.count[int]) -> None:
    """Run the given number of pods, and list all without end."""
    left = _PODS

    async def one() -> None:
        nonlocal left
        if left:
            await _annotated(client, ground, next(numbers))
            left -= 1
        else:
            await client.pods()

    await again(one)


async def _annotated(client: Client, ground: AttackGround, number: int) -> None:
    uid = str(uuid4())
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=f"annotated-{number}", uid=uid, namespace="hostile"),
        hostname="annotated",
        log_directory=f"{ground.logs}/{uid}",
        annotations={"large": "x" * _ANNOTATION},
        linux=cri.LinuxPodSandboxConfig(resources=cri.LinuxContainerResources(cpu_shares=2)),
    )
    reply = await client.runtime.RunPodSandbox(cri.RunPodSandboxRequest(config=config), timeout=60)
    MADE.append(reply.pod_sandbox_id)
