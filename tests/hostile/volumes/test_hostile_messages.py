"""A pod mounts files of the host whose paths look like a termination message, to have them overwritten."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cri.cri_daemons import CriNode, container_status, needs_node, pulled
from tests.support.cri.kubelet_files import PodFiles
from tests.support.waiting import until
from tools.localnode.cri_client import Client, Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node]

# The zone's root makes its copy writable, in spite of the mount's options.
WRITE = "mount -o remount,rw,bind /f; echo WRITTEN_BY_ZONE > /f"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[CriNode]:
    made = CriNode(tmp_path)
    await made.start()
    yield made
    await made.close()


async def _end(client: Client, image: str, pod: Pod, name: str, mount: cri.Mount) -> None:
    """Run a privileged container that writes to /f, to its end."""
    config = cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name=name),
        image=cri.ImageSpec(image=image),
        command=["sh", "-c", WRITE],
        mounts=[mount],
        linux=cri.LinuxContainerConfig(security_context=cri.LinuxContainerSecurityContext(privileged=True)),
    )
    request = cri.CreateContainerRequest(pod_sandbox_id=pod.id, config=config, sandbox_config=pod.config)
    container = (await client.runtime.CreateContainer(request, timeout=60)).container_id
    await client.start(container)

    async def exited() -> bool:
        return (await container_status(client, container)).state == cri.CONTAINER_EXITED

    await until(exited)


async def _run(client: Client) -> Pod:
    security = cri.LinuxSandboxSecurityContext(privileged=True)
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name="attacker", namespace="default", uid="own-uid"),
        linux=cri.LinuxPodSandboxConfig(security_context=security),
    )
    request = cri.RunPodSandboxRequest(config=config)
    return Pod((await client.runtime.RunPodSandbox(request, timeout=60)).pod_sandbox_id, config)


async def test_a_readonly_termination_message_is_never_written_back(node: CriNode, tmp_path: Path) -> None:
    """Neither another pod's file nor the pod's own; only the pod's own writable file is written."""
    others, own = PodFiles(tmp_path / "pods/other-uid"), PodFiles(tmp_path / "pods/own-uid")
    files = [others.termination_log(), own.termination_log(), own.termination_log()]
    for file in files:
        file.write_text("ORIGINAL")
    async with pulled(node, tmp_path / "registry") as image, node.client() as client:
        pod = await _run(client)
        for number, (file, readonly) in enumerate(zip(files, (True, True, False), strict=True)):
            mount = cri.Mount(host_path=str(file), container_path="/f", readonly=readonly)
            await _end(client, image, pod, f"c{number}", mount)
    assert [file.read_text() for file in files] == ["ORIGINAL", "ORIGINAL", "WRITTEN_BY_ZONE\n"]
