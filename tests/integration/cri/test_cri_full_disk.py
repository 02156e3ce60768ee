"""A full disk under both daemons: nothing new begins, and running pods can be ended and removed."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import grpc
import grpc.aio
import pytest

from tests.support.cri.cri_daemons import IMAGE, CriNode, needs_node, pulled
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node]


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Path]:
    """A file system of its own, in a file, as ext4."""
    image, place = tmp_path / "file", tmp_path / "disk"
    place.mkdir()
    await _run("truncate", "-s", "48M", str(image))
    await _run("mkfs.ext4", "-q", "-m", "0", "-b", "4096", str(image))
    await _run("mount", "-o", "loop", str(image), str(place))
    try:
        (place / "node").mkdir()
        yield place
    finally:
        await _run("umount", str(place))


async def _run(*command: str) -> None:
    await asyncio.to_thread(subprocess.run, command, check=True)


def _fill(path: Path) -> None:
    with pytest.raises(OSError, match="No space left"), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


async def _no_room_for(work: Awaitable[object]) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await work
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "No space left" in (raised.value.details() or "") and "free" in (raised.value.details() or "")


async def test_full_disk_allows_the_end_of_pods_and_no_new_pods(disk: Path, tmp_path: Path) -> None:
    node = CriNode(disk / "node")
    try:
        await node.start()
        async with pulled(node, tmp_path / "registry"), node.client() as client:
            pods = [await client.run_pod(f"pod{number}") for number in range(3)]
            containers = [await client.create(pod, IMAGE, ["sleep", "1000"]) for pod in pods]
            for container in containers:
                await client.start(container)
            _fill(disk / "filler")
            await _no_room_for(client.run_pod("more"))
            await _no_room_for(client.create(pods[0], IMAGE, ["true"], name="more"))
            assert (await client.exec(containers[0], "echo", "on")).stdout == b"on\n"
            for number, (pod, container) in enumerate(zip(pods, containers, strict=True)):
                await client.remove_container(container)
                await client.remove_pod(pod.id)
                _fill(disk / f"filler{number}")
            await client.remove_image(IMAGE)
            listed = await client.image.ListImages(cri.ListImagesRequest())
            assert await client.pods() == [] and not listed.images
            assert node.leftovers() == {}
    finally:
        for path in disk.glob("filler*"):
            path.unlink()
        await node.close()
