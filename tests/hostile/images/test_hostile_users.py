"""An image has accounts with uid 0 whose names are the numbers that pods request."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import pytest

from tests.support.cri.cri_daemons import CriNode, container_status, needs_node
from tools.localnode import images, layers, registry
from tools.localnode.cri_client import Client
from tools.localnode.images import PushedImage
from tools.localnode.layers import LayerEntry
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node]

ACCOUNTS = layers.layer(
    LayerEntry("etc"),
    LayerEntry(
        "etc/passwd",
        0o644,
        b"99999:x:0:0::/root:/bin/sh\n4294967296:x:0:0::/root:/bin/sh\n01000:x:0:0::/root:/bin/sh\n"
        b"app:x:1000:1::/:/bin/sh\n",
    ),
    LayerEntry("etc/group", 0o644, b"root:x:0:\n77777:x:0:\nwheel:x:10:99999\nadm:x:4:app\n"),
)
SECURITY = cri.LinuxContainerSecurityContext


@dataclass
class Attack:
    """A node, and a registry with images of any ``USER``."""

    client: Client
    registry: str
    pod: cri.PodSandboxConfig
    pod_id: str

    async def image(self, user: str) -> cri.Image:
        name = f"user{user.replace(':', '-')}:1"
        images.push(self.registry, name, PushedImage([layers.busybox(), ACCOUNTS], {"User": user}))
        spec = cri.ImageSpec(image=await self.client.pull(f"registry.test/{name}"))
        return (await self.client.image.ImageStatus(cri.ImageStatusRequest(image=spec), timeout=60)).image

    async def create(self, image: cri.Image, security: SECURITY) -> str:
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=f"c-{uuid.uuid4()}"),
            image=cri.ImageSpec(image=image.id),
            command=["sleep", "1000"],
            linux=cri.LinuxContainerConfig(security_context=security),
        )
        request = cri.CreateContainerRequest(
            pod_sandbox_id=self.pod_id, config=config, sandbox_config=self.pod
        )
        return str((await self.client.runtime.CreateContainer(request, timeout=60)).container_id)

    async def ids(self, image: cri.Image, security: SECURITY) -> str:
        """uid, gid and groups in ContainerStatus; the first process and an exec have the same."""
        container = await self.create(image, security)
        await self.client.start(container)
        shown = (await container_status(self.client, container)).user.linux
        groups = list(shown.supplemental_groups)
        for process in ("self", "1"):
            text = (await self.client.exec(container, "cat", f"/proc/{process}/status")).stdout.decode()
            fields = dict(line.split(":\t") for line in text.splitlines() if ":\t" in line)
            assert set(fields["Uid"].split()) == {str(shown.uid)}
            assert set(fields["Gid"].split()) == {str(shown.gid)}
            assert fields["Groups"].split() == list(map(str, groups))
        return f"{shown.uid} {shown.gid} {groups}"


@pytest.fixture
async def attack(tmp_path: Path) -> AsyncIterator[Attack]:
    node = CriNode(tmp_path)
    await node.start()
    options = cri.NamespaceOption(pid=cri.CONTAINER)
    pod = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name="victim", namespace="default", uid="victim"),
        linux=cri.LinuxPodSandboxConfig(
            security_context=cri.LinuxSandboxSecurityContext(namespace_options=options)
        ),
    )
    try:
        async with registry.serve_registry(tmp_path / "registry") as address, node.client() as client:
            registry.mirror(node.certs, "registry.test", address)
            reply = await client.runtime.RunPodSandbox(cri.RunPodSandboxRequest(config=pod), timeout=60)
            yield Attack(client, address, pod, reply.pod_sandbox_id)
    finally:
        await node.close()


def _asks(uid: int | None = None, name: str = "", gid: int | None = None) -> SECURITY:
    return SECURITY(
        namespace_options=cri.NamespaceOption(pid=cri.CONTAINER),
        run_as_user=None if uid is None else cri.Int64Value(value=uid),
        run_as_group=None if gid is None else cri.Int64Value(value=gid),
        run_as_username=name,
    )


async def test_account_named_like_a_number_does_not_get_the_number(attack: Attack) -> None:
    named = await attack.image("99999")
    assert (named.uid.value, named.username) == (99999, "")
    assert await attack.ids(named, _asks(99999)) == "99999 0 [0]"
    assert await attack.ids(named, _asks(name="099999")) == "99999 0 [0]"
    assert await attack.ids(named, _asks(99999, gid=77777)) == "99999 77777 [77777]"
    assert await attack.ids(named, _asks()) == "99999 0 [0]"


async def test_a_number_of_an_image_is_its_uid(attack: Attack) -> None:
    padded = await attack.image("01000")
    assert (padded.uid.value, padded.username) == (1000, "")
    assert await attack.ids(padded, _asks()) == "1000 1 [1, 4]"
    grouped = await attack.image("app:77777")
    assert await attack.ids(grouped, _asks()) == "1000 77777 [4, 77777]"


async def test_number_outside_of_uids_is_refused(attack: Attack) -> None:
    beyond = await attack.image("4294967296")
    assert not beyond.HasField("uid") and beyond.username == "4294967296"
    for security in (_asks(), _asks(name=beyond.username)):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await attack.create(beyond, security)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "not between 0 and 4294967294" in str(caught.value.details())
