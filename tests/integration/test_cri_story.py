"""The whole story over the real CRI socket: both daemons, the fake toolstack, real images and CNI plugins."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cri_daemons import CriNode, container_status, needs_node, pulled
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[CriNode]:
    made = CriNode(tmp_path)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


async def test_a_pod_runs_from_pull_to_remove(node: CriNode, tmp_path: Path) -> None:
    async with pulled(node, tmp_path / "registry") as image, node.client() as client:
        pod = await client.run_pod("story")
        container = await client.create(pod, image, ["sh", "-c", "echo hello; exec sleep 1000"])
        await client.start(container)
        assert (await container_status(client, container)).state == cri.CONTAINER_RUNNING
        reply = await client.exec(container, "sh", "-c", "echo out; echo err >&2; exit 3")
        assert (reply.stdout, reply.stderr, reply.exit_code) == (b"out\n", b"err\n", 3)
        await client.remove_container(container)
        await client.remove_pod(pod.id)
        assert node.leftovers() == {}
