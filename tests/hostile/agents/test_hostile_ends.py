"""Pods whose zones do not end: their agents hang up, are gone, or never answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from daemonkit.rpc.channels import channel
from tests.support.agent.hostile_zone import HostileZone, directory_of
from tests.support.cri.cri_daemons import CriNode, in_step, needs_node, pulled
from tests.support.protect.zones import TIMEOUT
from tools.localnode.cri_client import Client, Pod
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc as protect

pytestmark = [pytest.mark.root, needs_node]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[CriNode]:
    made = CriNode(tmp_path)
    made.protectd.configure(timeouts={"call": "2s"})
    await made.start()
    yield made
    await made.close()


async def _hostile(node: CriNode, pod: Pod, attack: str) -> HostileZone:
    async with channel(node.protectd.daemon.socket) as link:
        zone = await protect.ZonesStub(link).GetZone(pb.GetZoneRequest(id=pod.id), timeout=TIMEOUT)
    directory = directory_of(node.protectd.run_dir, zone.domain_id)
    made = await asyncio.to_thread(HostileZone, directory, attack)
    assert await asyncio.to_thread(made.attacked.wait, TIMEOUT)
    return made


async def _runs(client: Client, image: str, name: str) -> Pod:
    pod = await client.run_pod(name)
    container = await client.create(pod, image, ("sleep", "3600"))
    await client.start(container)
    return pod


@pytest.mark.parametrize("attack", ["hang-up", "gone", "silent"])
async def test_pod_with_a_silent_agent_is_stopped_and_removed(
    node: CriNode, tmp_path: Path, attack: str
) -> None:
    """At the first request: the zone's resources are free again for other pods."""
    async with pulled(node, tmp_path / "store") as image, node.client() as client:
        pod = await _runs(client, image, "evil")
        with ExitStack() as stack:
            stack.callback((await _hostile(node, pod, attack)).stop)
            await client.remove_pod(pod.id)
        assert await client.pods() == []
        await node.nothing_left()
        await client.remove_pod((await _runs(client, image, "honest")).id)


async def test_stop_without_protectd_is_no_success(node: CriNode, tmp_path: Path) -> None:
    """Nobody answers for the zone, and the zone goes on."""
    async with pulled(node, tmp_path / "store") as image, node.client() as client:
        pod = await _runs(client, image, "web")
        await node.protectd.daemon.stop()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.remove_pod(pod.id)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        await node.protectd.daemon.start()
        await asyncio.wait_for(in_step(client), TIMEOUT)
