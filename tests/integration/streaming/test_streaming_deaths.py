"""Commands that are cut off because a daemon or their zone ended: no client is told of success."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass

import grpc.aio
import pytest
import pytest_asyncio

from tests.support.cri.conformance import crash_zone
from tests.support.cri.cri_daemons import CriNode, in_step, needs_node, pulled
from tools.localnode.cri_client import Client, Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [
    pytest.mark.root,
    needs_node,
    pytest.mark.skipif(shutil.which("crictl") is None, reason="crictl is not on PATH"),
    pytest.mark.asyncio(loop_scope="module"),
]

PIPE = asyncio.subprocess.PIPE
SCRIPT = "echo up; exec sleep 100000"
PATIENCE = 60.0


@dataclass
class Stage:
    """Both daemons, and an image; a pod for each test, since some lose theirs."""

    node: CriNode
    image: str

    async def started(self, client: Client, pod: Pod) -> str:
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name="main"),
            image=cri.ImageSpec(image=self.image),
            command=["sh", "-c", "while read -r line; do echo $line; done"],
            stdin=True,
            log_path="main.log",
        )
        request = cri.CreateContainerRequest(pod_sandbox_id=pod.id, config=config, sandbox_config=pod.config)
        container = (await client.runtime.CreateContainer(request, timeout=PATIENCE)).container_id
        await client.start(container)
        return str(container)

    async def crictl(self, *arguments: str) -> asyncio.subprocess.Process:
        """A client of Kubernetes' own."""
        endpoint = f"unix://{self.node.daemon.socket}"
        config = self.node.folder / "crictl.yaml"
        config.write_text("{}\n")
        line = ["crictl", "-c", str(config), "-r", endpoint, "-i", endpoint, *arguments]
        return await asyncio.create_subprocess_exec(*line, stdin=PIPE, stdout=PIPE, stderr=PIPE)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[Client, Pod, str]]:
        """A pod with a container in it; the daemons run again afterwards, and the pod is removed."""
        async with self.node.client() as client:
            pod = await client.run_pod("web")
            try:
                yield client, pod, await self.started(client, pod)
            finally:
                for daemon in (self.node.protectd.daemon, self.node.daemon):
                    if daemon.process is None or daemon.process.returncode is not None:
                        await daemon.start()
                async with self.node.client() as again, asyncio.timeout(PATIENCE):
                    await in_step(again)
                    await again.remove_pod(pod.id)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    folder = tmp_path_factory.mktemp("deaths")
    node = CriNode(folder)
    await node.start()
    try:
        async with pulled(node, folder / "registry") as image:
            yield Stage(node, image)
    finally:
        await node.close()


async def _crash_zone(stage: Stage, pod: Pod) -> None:
    crash_zone(stage.node, pod)


async def _kill_protectd(stage: Stage, pod: Pod) -> None:
    await stage.node.protectd.daemon.crash()


async def _stop_protectd(stage: Stage, pod: Pod) -> None:
    await stage.node.protectd.daemon.stop()


async def _kill_cri(stage: Stage, pod: Pod) -> None:
    await stage.node.daemon.crash()


async def _stop_cri(stage: Stage, pod: Pod) -> None:
    await stage.node.daemon.stop()


DEATHS: Mapping[str, Callable[[Stage, Pod], Awaitable[None]]] = {
    "zone crashed": _crash_zone,
    "protectd killed": _kill_protectd,
    "protectd stopped": _stop_protectd,
    "xenpod-cri killed": _kill_cri,
    "xenpod-cri stopped": _stop_cri,
}


async def first_line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        return await process.stdout.readline()


@pytest.mark.parametrize("transport", ["spdy", "websocket"])
@pytest.mark.parametrize("death", DEATHS)
async def test_no_client_takes_it_for_success(stage: Stage, transport: str, death: str) -> None:
    async with stage.running() as (_, pod, container):
        executed = await stage.crictl("exec", "--transport", transport, container, "sh", "-c", SCRIPT)
        attached = await stage.crictl("attach", "--transport", transport, "-i", container)
        assert await first_line(executed) == b"up\n"
        assert attached.stdin is not None
        attached.stdin.write(b"here\n")
        assert await first_line(attached) == b"here\n"
        await DEATHS[death](stage, pod)
        for process in (executed, attached):
            async with asyncio.timeout(PATIENCE):
                _, err = await process.communicate()
            assert process.returncode == 1, err
            assert err


@pytest.mark.parametrize("death", DEATHS)
async def test_an_exec_sync_fails(stage: Stage, death: str) -> None:
    """A retry may succeed, but for one in a zone that has ended."""
    async with stage.running() as (client, pod, container):
        request = cri.ExecSyncRequest(container_id=container, cmd=["sh", "-c", ": >/up; sleep 100000"])
        call = client.runtime.ExecSync(request, timeout=PATIENCE)
        there = "until [ -e /up ]; do usleep 10000; done"
        assert (await client.exec(container, "sh", "-c", there)).exit_code == 0
        dying = asyncio.ensure_future(DEATHS[death](stage, pod))
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call
        await dying
        wanted = {grpc.StatusCode.UNAVAILABLE}
        if death == "zone killed":
            wanted = {grpc.StatusCode.FAILED_PRECONDITION}
        if death == "zone crashed":  # the channel may end before the domain does
            wanted.add(grpc.StatusCode.FAILED_PRECONDITION)
        assert failed.value.code() in wanted, failed.value.details()
