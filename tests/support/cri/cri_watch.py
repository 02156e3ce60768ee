"""A node with an image for tests of what a client sees: containers with scripts, and the event stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.cri.cri_daemons import CriNode, pulled
from tools.localnode.cri_client import Client, Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

DEADLINE = 60.0


@dataclass
class Watched:
    """The node, a client and the image's reference."""

    node: CriNode
    client: Client
    image: str

    async def started(
        self, pod: Pod, script: str, resources: cri.LinuxContainerResources | None = None
    ) -> str:
        """Start a container with a shell script: its id."""
        container = await self.created(pod, "sh", "-c", script, resources=resources)
        await self.client.start(container)
        return container

    async def created(
        self, pod: Pod, *command: str, resources: cri.LinuxContainerResources | None = None
    ) -> str:
        """Create a container with this command: its id."""
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name="main"),
            image=cri.ImageSpec(image=self.image),
            command=command,
            log_path="main.log",
            linux=cri.LinuxContainerConfig(resources=resources),
        )
        request = cri.CreateContainerRequest(pod_sandbox_id=pod.id, config=config, sandbox_config=pod.config)
        return str((await self.client.runtime.CreateContainer(request, timeout=DEADLINE)).container_id)

    async def output(self, container: str, script: str) -> str:
        """What a script in the container says; it must succeed."""
        reply = await self.client.exec(container, "sh", "-c", script)
        assert reply.exit_code == 0, reply.stderr
        return reply.stdout.decode().strip()


class Events:
    """A subscription."""

    def __init__(self, client: Client) -> None:
        self._call: Any = client.runtime.GetContainerEvents(cri.GetEventsRequest())

    async def next(self, count: int) -> list[cri.ContainerEventResponse]:
        async with asyncio.timeout(DEADLINE):
            return [await self._call.read() for _ in range(count)]

    def close(self) -> None:
        self._call.cancel()


@contextlib.asynccontextmanager
async def watched(
    folder: Path, settings: Mapping[str, object] | None = None, protectd: Mapping[str, object] | None = None
) -> AsyncIterator[Watched]:
    """Start both daemons, with these settings; everything is removed at the end."""
    node = CriNode(folder, settings=dict(settings or {}))
    node.protectd.configure(**(protectd or {}))
    await node.start()
    try:
        async with pulled(node, folder / "registry") as image, node.client() as client:
            yield Watched(node, client, image)
    finally:
        await node.close()
    await node.nothing_left()
