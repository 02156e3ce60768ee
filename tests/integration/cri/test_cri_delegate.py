"""The real daemons in front of a delegate that is away, dies, lies, or is a xenpod-cri."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.support.cri.cri_daemons import CriNode, needs_node, pulled
from tests.support.cri.other_runtime import OtherRuntime, Status, other_runtime
from tests.support.protect.daemons import DaemonFailed
from tests.support.waiting import until
from tools.localnode.cri_client import Client
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node]


@pytest.fixture
async def other(short_path: Path) -> AsyncIterator[OtherRuntime]:
    async with other_runtime(short_path / "other.sock") as made:
        yield made


@pytest.fixture
async def node(tmp_path: Path, other: OtherRuntime) -> AsyncIterator[CriNode]:
    made = CriNode(tmp_path)
    # Pods of localnode's client, which name no handler, are zones.
    delegate = {"endpoint": f"unix://{other.path}", "namespaces": ["default"]}
    made.configure(delegate=delegate | {"default": "xenpod", "timeout": "2s"})
    await made.protectd.daemon.start()
    yield made
    made.configure(delegate={})
    if made.daemon.process is not None and made.daemon.process.returncode is None:
        await made.daemon.stop()
    await made.close()
    await made.nothing_left()


async def agent(client: Client, name: str = "agent") -> str:
    """Make a pod of the delegate: the pod's id."""
    metadata = cri.PodSandboxMetadata(name=name, namespace="default", uid=f"u-{name}")
    config = cri.PodSandboxConfig(metadata=metadata)
    request = cri.RunPodSandboxRequest(config=config, runtime_handler="runc")
    reply = await client.runtime.RunPodSandbox(request, timeout=60)
    return str(reply.pod_sandbox_id)


async def condition(client: Client) -> cri.RuntimeCondition:
    reply = await client.runtime.Status(cri.StatusRequest(), timeout=60)
    said = {one.type: one for one in reply.status.conditions}
    assert said["RuntimeReady"].status and said["NetworkReady"].status
    return said["DelegateReady"]


async def answers(client: Client) -> None:
    """Wait until xenpod-cri has noticed that the delegate answers."""

    async def noticed() -> bool:
        return (await condition(client)).status

    await until(noticed)


async def zone_works(client: Client, container: str) -> None:
    done = await client.exec(container, "echo", "still")
    assert done.stdout == b"still\n"


async def test_delegate_comes_goes_and_comes_back_beside_a_zone(node: CriNode, other: OtherRuntime) -> None:
    await other.die()
    await node.daemon.start()
    async with pulled(node, node.folder / "registry") as image, node.client() as client:
        pod = await client.run_pod("web")
        container = await client.create(pod, image, ["sleep", "100000"])
        await client.start(container)
        assert not (await condition(client)).status
        assert await client.pods() == [pod.id]
        await other.start()
        await answers(client)
        theirs = await agent(client)
        assert set(await client.pods()) == {pod.id, theirs}
        await other.die()
        assert set(await client.pods()) == {pod.id, theirs}
        with pytest.raises(grpc.aio.AioRpcError, match=str(other.path)) as caught:
            await agent(client, "late")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await zone_works(client, container)
        # xenpod-cri may go away, too: the delegate's pods run on, and no pod seems gone.
        await node.daemon.crash()
        await node.daemon.start()
        async with node.client() as again:
            with pytest.raises(grpc.aio.AioRpcError, match="what it runs is not known"):
                await again.pods()
            await zone_works(again, container)
            await other.start()
            await answers(again)
            assert set(await again.pods()) == {pod.id, theirs}
            await again.remove_pod(theirs)
            await again.remove_pod(pod.id)
        assert not other.pods


def huge() -> bytes:
    """A list of more than 16 MiB: one item with a long label."""
    item = cri.PodSandbox(id="a" * 64, labels={"x": "y" * (17 << 20)})
    return cri.ListPodSandboxResponse(items=[item]).SerializeToString()


async def test_lies_spoil_nothing_of_a_zone(node: CriNode, other: OtherRuntime) -> None:
    await node.daemon.start()
    async with pulled(node, node.folder / "registry") as image, node.client() as client:
        pod = await client.run_pod("web")
        container = await client.create(pod, image, ["sleep", "100000"])
        await client.start(container)
        theirs = await agent(client)
        assert set(await client.pods()) == {pod.id, theirs}
        mine = cri.PodSandbox(id=pod.id, state=cri.SANDBOX_NOTREADY)
        lies: list[Any] = [
            huge(),
            b"\x0a\xff",
            cri.ListPodSandboxResponse(
                items=[mine, cri.PodSandbox(), other.pods[theirs], other.pods[theirs]]
            ),
            Status(grpc.StatusCode.RESOURCE_EXHAUSTED, "no"),
        ]
        for lie in lies:
            other.answers["ListPodSandbox"] = lie
            reply = await client.runtime.ListPodSandbox(cri.ListPodSandboxRequest(), timeout=60)
            found = {one.id: one.state for one in reply.items}
            assert found == {pod.id: cri.SANDBOX_READY, theirs: cri.SANDBOX_READY}
            await zone_works(client, container)
            del other.answers["ListPodSandbox"]
            await answers(client)
        other.answers["RunPodSandbox"] = cri.RunPodSandboxResponse(pod_sandbox_id=pod.id)
        with pytest.raises(grpc.aio.AioRpcError, match="which cannot be"):
            await agent(client, "thief")
        other.hanging |= {"ListPodSandbox", "ListContainers", "Status", "Version"}
        assert set(await client.pods()) == {pod.id, theirs}
        await zone_works(client, container)
        await client.remove_pod(pod.id)
        other.hanging.clear()
        await answers(client)
        await client.remove_pod(theirs)


@pytest.mark.parametrize("how", ["our socket", "a link to our socket", "a xenpod"])
async def test_delegate_leading_to_ourselves_ends_the_start(
    node: CriNode, other: OtherRuntime, how: str
) -> None:
    path = node.daemon.socket
    if how == "a link to our socket":
        path = node.folder / "link"
        path.symlink_to(node.daemon.socket)
    elif how == "a xenpod":
        path, other.name = other.path, "xenpod"
    node.configure(delegate={"endpoint": f"unix://{path}"})
    with pytest.raises(DaemonFailed) as failed:
        await node.daemon.start()
    assert await node.daemon.ended() == 1
    assert f"read configuration {node.daemon.config}: key 'delegate.endpoint': " in str(failed.value)
