"""A node whose disk damaged an image: running containers go on, and new containers get sound files."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from protectctl.__main__ import main
from tests.support.cri.cri_daemons import CriNode, needs_node
from tests.support.images.images import Layer
from tools.localnode import images, registry
from tools.localnode.cri_client import Client, Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node]
BALLAST = random.Random(9).randbytes(6 << 20)
NAME = "registry.test/ballast:1"


@asynccontextmanager
async def _damaged(tmp_path: Path) -> AsyncIterator[tuple[CriNode, str, Client, Pod, str]]:
    """A node, an image with a damaged filesystem, and a container of the image: (..., pod, container)."""
    node = CriNode(tmp_path)
    node.configure(images={"certs_dir": str(node.certs), "part_size": "1GiB"})
    await node.start()
    try:
        async with registry.serve_registry(tmp_path / "registry") as address, node.client() as client:
            layers = [images.busybox().layers[0], Layer().file("ballast", BALLAST).tar()]
            images.push(address, "ballast:1", images.PushedImage(layers, {"Cmd": ["sh"]}))
            registry.mirror(node.certs, "registry.test", address)
            image = await client.pull(NAME)
            pod = await client.run_pod("damage")
            running = await client.create(pod, image, ["sleep", "1000"], "first")
            await client.start(running)
            (path,) = (node.folder / "state/images/filesystems").iterdir()
            _harm(path)
            assert await _verify(node) == 1
            yield node, image, client, pod, running
    finally:
        await node.close()


def _harm(path: Path) -> None:
    """Change a byte in the middle, where the ballast is."""
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 0xFF]))


async def _verify(node: CriNode, *options: str) -> int:
    return await asyncio.to_thread(
        main, ["image", "verify", *options, "--cri-socket", str(node.daemon.socket)]
    )


async def _sum(client: Client, container: str) -> str:
    done = await client.exec(container, "busybox", "sha256sum", "/ballast")
    return done.stdout.decode().partition(" ")[0]


async def test_a_new_container_gets_a_rebuilt_filesystem(tmp_path: Path) -> None:
    """A running container keeps its filesystem, also when the daemons are restarted."""
    wanted = hashlib.sha256(BALLAST).hexdigest()
    async with _damaged(tmp_path) as (node, image, client, pod, running):
        second = await client.create(pod, image, ["sleep", "1000"], "second")
        await client.start(second)
        assert await _sum(client, second) == wanted
        assert (await client.exec(running, "busybox", "true")).exit_code == 0
        assert await _verify(node) == 0
        await node.daemon.stop()
        await node.protectd.daemon.stop()
        await node.start()
        async with node.client() as client:
            assert (await client.exec(running, "busybox", "true")).exit_code == 0
            assert await _sum(client, second) == wanted
            await client.remove_container(running)
            third = await client.create(pod, image, ["sleep", "1000"], "third")
            await client.start(third)
            assert await _sum(client, third) == wanted


async def test_damaged_image_without_layers_is_refused_until_pulled_again(tmp_path: Path) -> None:
    async with _damaged(tmp_path) as (node, image, client, pod, running):
        for layer in (node.folder / "state/images/blobs/sha256").iterdir():
            layer.unlink()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.create(pod, image, ["sleep", "1000"], "second")
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        text = caught.value.details() or ""
        assert NAME in text and "damaged" in text and "pull it again" in text
        asked = cri.ImageStatusRequest(image=cri.ImageSpec(image=image))
        assert not (await client.image.ImageStatus(asked)).HasField("image")
        # The kubelet pulls a missing image.
        assert await client.pull(NAME) == image
        assert (await client.image.ImageStatus(asked)).image.id == image
        second = await client.create(pod, image, ["sleep", "1000"], "second")
        await client.start(second)
        assert await _sum(client, second) == hashlib.sha256(BALLAST).hexdigest()
        assert (await client.exec(running, "busybox", "true")).exit_code == 0
