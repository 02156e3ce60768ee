"""Both daemons with a client and an image: the fixtures of tests of CRI.

A test file chooses ``stage``, whose daemons serve all tests of the file, or ``fresh_stage``, whose daemons
serve a single test.  The file sets ``pytest.mark.asyncio(loop_scope="module")``, and overrides
``stage_settings`` if its daemons need other settings.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import pytest_asyncio

from tests.support.cri.cri_daemons import CriNode, container_status, pulled
from tests.support.waiting import until
from tools.localnode.cri_client import Client, Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

DEADLINE = 60.0
FOREVER = "exec sleep 100000"


@dataclass(frozen=True)
class StageSettings:
    """Keys of cri.toml and protectd.toml."""

    cri: Mapping[str, object] = field(default_factory=dict)
    protectd: Mapping[str, object] = field(default_factory=dict)


@dataclass
class Stage:
    """A node, its client, and the reference of an image with busybox."""

    node: CriNode
    client: Client
    image: str
    patience: ClassVar[float] = DEADLINE
    """Seconds for a call."""

    @property
    def runtime(self) -> Any:
        """The RuntimeService stub."""
        return self.client.runtime

    def default_name(self) -> str:
        """Name of a container if the test names none."""
        return "main"

    async def create(self, pod: Pod, script: str = FOREVER, name: str = "", **fields: Any) -> str:
        """CreateContainer of a shell script; ``fields`` are ContainerConfig's.  The container's id."""
        name = name or self.default_name()
        defaults: dict[str, Any] = {
            "metadata": cri.ContainerMetadata(name=name),
            "image": cri.ImageSpec(image=self.image),
            "command": ["sh", "-c", script],
            "log_path": f"{name}.log",
        }
        config = cri.ContainerConfig(**(defaults | fields))
        request = cri.CreateContainerRequest(pod_sandbox_id=pod.id, config=config, sandbox_config=pod.config)
        return str((await self.runtime.CreateContainer(request, timeout=self.patience)).container_id)

    async def started(self, pod: Pod, script: str = FOREVER, name: str = "", **fields: Any) -> str:
        """``create`` and StartContainer."""
        container = await self.create(pod, script, name, **fields)
        await self.client.start(container)
        return container

    async def status(self, container: str) -> cri.ContainerStatus:
        return await container_status(self.client, container)

    async def exited(self, container: str) -> cri.ContainerStatus:
        """Wait for the container's end: its status."""
        status = await self.status(container)

        async def ended() -> bool:
            nonlocal status
            status = await self.status(container)
            return status.state == cri.CONTAINER_EXITED

        await until(ended)
        return status

    async def address(self, pod: Pod) -> str:
        """The pod's first IP address."""
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=pod.id)
        reply = cast(cri.PodSandboxStatusResponse, await self.runtime.PodSandboxStatus(request))
        return reply.status.network.ip

    async def says(self, container: str, script: str) -> tuple[int, str]:
        """Exit code and both outputs of a script in the container."""
        reply = await self.client.exec(container, "sh", "-c", script)
        return reply.exit_code, (reply.stdout + reply.stderr).decode().strip()

    async def output(self, container: str, script: str) -> str:
        """The output of a script in the container.  AssertionError: the script fails."""
        reply = await self.client.exec(container, "sh", "-c", script)
        assert reply.exit_code == 0, reply.stdout + reply.stderr
        return reply.stdout.decode().strip()

    def crictl(self, *arguments: str) -> list[str]:
        """The command line of crictl for this node."""
        endpoint = f"unix://{self.node.daemon.socket}"
        config = self.node.folder / "crictl.yaml"
        config.write_text("{}\n")
        return ["crictl", "-c", str(config), "-r", endpoint, "-i", endpoint, *arguments]

    async def revive(self) -> None:
        """Start the daemons that have ended, without faults."""
        for owner in (self.node.protectd, self.node):
            process = owner.daemon.process
            if process is None or process.returncode is not None:
                if owner.settings.get("faults"):
                    owner.configure(faults={})
                await owner.daemon.start()
        await until(self._ready)

    async def _ready(self) -> bool:
        """Whether xenpod-cri is connected to protectd; a handler may be unusable."""
        reply = await self.runtime.Status(cri.StatusRequest(), wait_for_ready=True)
        return any(one.type == "RuntimeReady" and one.status for one in reply.status.conditions)

    async def tidy(self) -> None:
        """Remove all pods, also after a test that failed; nothing may be left of them."""
        await self.revive()
        for pod in await self.client.pods():
            await self.client.remove_pod(pod)
        await self.node.nothing_left()


@contextlib.asynccontextmanager
async def running(node: CriNode, patience: float = DEADLINE) -> AsyncIterator[None]:
    """Start both daemons; in the end all pods are removed, and nothing may be left."""
    await node.start()
    try:
        yield
    finally:
        await node.close()
    await node.nothing_left(patience)


@contextlib.asynccontextmanager
async def staged(folder: Path, settings: StageSettings | None = None) -> AsyncIterator[Stage]:
    """Start both daemons and pull the image; in the end all pods are removed, and nothing may be left."""
    settings = settings or StageSettings()
    node = CriNode(folder, settings=dict(settings.cri))
    node.protectd.configure(**settings.protectd)
    async with running(node), pulled(node, folder / "registry") as image, node.client() as client:
        yield Stage(node, client, image)


@pytest.fixture(scope="module")
def stage_settings() -> StageSettings:
    """A test file with other settings overrides this fixture."""
    return StageSettings()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_stage(
    tmp_path_factory: pytest.TempPathFactory, stage_settings: StageSettings
) -> AsyncIterator[Stage]:
    """The daemons of a test file, with the pods of earlier tests."""
    async with staged(tmp_path_factory.mktemp("stage"), stage_settings) as stage:
        yield stage


@pytest_asyncio.fixture(loop_scope="module")
async def stage(module_stage: Stage) -> AsyncIterator[Stage]:
    """The daemons of a test file, without pods."""
    yield module_stage
    await module_stage.tidy()


@pytest_asyncio.fixture(loop_scope="module")
async def fresh_stage(tmp_path: Path, stage_settings: StageSettings) -> AsyncIterator[Stage]:
    """Daemons of a single test, which may restart, reconfigure or fill them."""
    async with staged(tmp_path, stage_settings) as stage:
        yield stage
