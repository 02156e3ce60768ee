"""A tenant fills the kubelet's lists with the annotations of its pods."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from tests.support.cri.cri_daemons import CriNode, needs_node
from tools.localnode.cri_client import Client
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[CriNode]:
    made = CriNode(tmp_path)
    await made.start()
    yield made
    await made.close()


async def _run(client: Client, name: str, namespace: str, size: int) -> str:
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=name, namespace=namespace, uid=name),
        annotations={"a": "x" * size},
    )
    reply = await client.runtime.RunPodSandbox(cri.RunPodSandboxRequest(config=config), timeout=120)
    return str(reply.pod_sandbox_id)


async def test_annotations_do_not_make_lists_too_large(node: CriNode) -> None:
    """Of 66 pods with 255 KiB each four run, also after a restart, and other tenants' pods run on."""
    async with node.client() as client:
        made = [await _run(client, f"large-{number}", "hostile", 255 << 10) for number in range(4)]
        await node.daemon.crash()
        await node.daemon.start()
    async with node.client() as client:
        for number in range(4, 66):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await _run(client, f"large-{number}", "hostile", 255 << 10)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "its namespace has" in str(caught.value.details())
        made.append(await _run(client, "honest", "tenant", 100 << 10))
        assert await client.pods() == made
