"""The CRI servicer over a protect.v1 in memory: pods."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cri_node import Rig, rig
from xenpod_proto.cri.v1 import runtime_pb2 as cri


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


async def test_a_pod_from_run_to_remove(node: Rig) -> None:
    pod = await node.pod()
    container = await node.started(pod)
    status = await node.status(container)
    assert status.state == cri.CONTAINER_RUNNING
    sandbox = await node.pod_status(pod)
    assert sandbox.state == cri.SANDBOX_READY
    assert sandbox.network.ip == "10.0.0.1"
    await node.cri.StopContainer(cri.StopContainerRequest(container_id=container, timeout=5))
    assert (await node.status(container)).exit_code == 128 + 15
    await node.cri.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod))
    assert (await node.pod_status(pod)).state == cri.SANDBOX_NOTREADY
    assert not node.protect.zones and not node.network.attached
    await node.cri.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=pod))
    assert await node.pods() == [] and await node.containers() == []
    assert not node.images.held
