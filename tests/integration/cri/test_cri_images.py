"""Images of a real node: removed while in use, pinned, collected, watched during a pull."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protectctl.__main__ import main
from tests.support.cri.cri_daemons import IMAGE, CriNode, needs_node, pulled
from tests.support.images.images import Layer, build, digest, packed
from tests.support.images.registry import LyingRegistry, stalling
from tools.localnode import images, registry
from tools.localnode.cri_client import Client
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[CriNode]:
    made = CriNode(tmp_path)
    made.configure(images={"certs_dir": str(made.certs), "pinned": ["*/pinned:*"]})
    await made.start()
    yield made
    await made.close()


def _stored(node: CriNode) -> set[Path]:
    root = node.folder / "state" / "images"
    return {path for part in ("blobs", "filesystems") for path in (root / part).rglob("*") if path.is_file()}


async def _names(client: Client) -> set[str]:
    images = (await client.image.ListImages(cri.ListImagesRequest())).images
    return {name for image in images for name in (*image.repo_tags, *image.repo_digests)}


async def _used(client: Client) -> int:
    info = await client.image.ImageFsInfo(cri.ImageFsInfoRequest())
    return int(info.image_filesystems[0].used_bytes.value)


async def _measured(node: CriNode) -> int:
    command = ["du", "-s", "-B1", str(node.folder / "state" / "images")]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])


async def test_stack_of_filesystems_is_a_single_tree_in_a_container(node: CriNode, tmp_path: Path) -> None:
    """As root and as volume; another image shares the lower filesystems."""
    node.configure(images={"certs_dir": str(node.certs), "part_size": "1"})
    await node.daemon.stop()
    await node.daemon.start()
    base = images.busybox().layers[0]
    lower = Layer().file("d/low", b"low").file("d/both", b"low").file("gone", b"x").dir("was/dir")
    upper = Layer().file("d/both", b"up").file(".wh.gone").file("was", b"file").link("d/linked", "d/low")
    both = [base, lower.tar(), upper.tar()]
    async with registry.serve_registry(tmp_path / "registry") as address, node.client() as client:
        for name, more in (("one", b"1"), ("two", b"2")):
            layers = [*both, Layer().file("etc/own", more).tar()]
            images.push(address, f"{name}:1", images.PushedImage(layers, {"Cmd": ["sh"]}))
        registry.mirror(node.certs, "registry.test", address)
        one, two = [await client.pull(f"registry.test/{name}:1") for name in ("one", "two")]
        assert len(list((node.folder / "state/images/filesystems").iterdir())) == 5
        pod = await client.run_pod("stacks")
        spec = cri.ImageSpec(image=two, user_specified_image="registry.test/two:1")
        mount = cri.Mount(container_path="/volume", image=spec, readonly=True)
        container = await client.create(pod, one, ["sleep", "1000"], mounts=[mount])
        await client.start(container)
        script = "cd {}/ && cat d/low d/both was etc/own && ls d && test ! -e gone && test d/low -ef d/linked"
        for root, own in (("", "1"), ("/volume", "2")):
            shown = await client.exec(container, "busybox", "sh", "-ec", script.format(root))
            assert (shown.exit_code, shown.stderr) == (0, b"")
            assert shown.stdout == f"lowupfile{own}both\nlinked\nlow\n".encode()
        await client.remove_pod(pod.id)


@pytest.mark.parametrize("by", ["tag", "digest", "id"])
async def test_removed_image_stays_usable_for_its_running_container(
    node: CriNode, tmp_path: Path, by: str
) -> None:
    async with pulled(node, tmp_path / "registry") as image, node.client() as client:
        pod = await client.run_pod("uses")
        container = await client.create(pod, image, ["sleep", "1000"])
        await client.start(container)
        files = _stored(node)
        (listed,) = (await client.image.ListImages(cri.ListImagesRequest())).images
        await client.remove_image({"tag": IMAGE, "digest": listed.repo_digests[0], "id": image}[by])
        assert await _names(client) == set()
        assert _stored(node) == files
        await node.daemon.stop()
        await node.daemon.start()
    async with node.client() as client:
        assert (await client.exec(container, "busybox", "true")).exit_code == 0
        assert _stored(node) == files
        await client.remove_pod(pod.id)
        assert _stored(node) == set()
        assert abs(await _used(client) / await _measured(node) - 1) < 0.01


async def test_removed_image_comes_back_with_its_names(node: CriNode, tmp_path: Path) -> None:
    """A container from before the removal starts; a second container is made after the next pull."""
    async with pulled(node, tmp_path / "registry") as image, node.client() as client:
        pod = await client.run_pod("restarts")
        first = await client.create(pod, image, ["sleep", "1000"], "first")
        await client.remove_image(IMAGE)
        await client.start(first)
        assert await client.pull(IMAGE) == image
        assert IMAGE in await _names(client)
        second = await client.create(pod, image, ["sleep", "1000"], "second")
        await client.start(second)
        await client.remove_pod(pod.id)
        assert len(_stored(node)) == 2
        assert abs(await _used(client) / await _measured(node) - 1) < 0.01


async def test_gc_keeps_images_of_containers(
    node: CriNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def gc() -> list[str]:
        arguments = ["image", "gc", "--cri-socket", str(node.daemon.socket), "--output", "json"]
        assert await asyncio.to_thread(main, arguments) == 0
        return [one["id"] for one in json.loads(capsys.readouterr().out)["removed"]]

    unused, pinned = (build([packed(Layer().file(name, b"x" * 9000).tar())]) for name in ("unused", "pinned"))
    with LyingRegistry("unused", "1", unused) as first, LyingRegistry("pinned", "1", pinned) as second:
        async with pulled(node, tmp_path / "registry") as image, node.client() as client:
            await client.pull(f"{first.netloc}/unused:1")
            await client.pull(f"{second.netloc}/pinned:1")
            pod = await client.run_pod("uses")
            container = await client.create(pod, image, ["sleep", "1000"])
            assert await gc() == [unused.id]
            await client.start(container)
            await client.remove_pod(pod.id)
            assert await gc() == [image]
            (left,) = (await client.image.ListImages(cri.ListImagesRequest())).images
            assert (left.id, left.pinned) == (pinned.id, True)


async def test_a_running_pull_shows_in_status(node: CriNode) -> None:
    image = build([packed(Layer().file("f", b"x" * 100_000).tar(), "")])
    layer, release = image.layers[0].data, threading.Event()
    with LyingRegistry("app", "1", image) as registry:
        registry.answers[f"/v2/app/blobs/{digest(layer)}"] = stalling(layer[:70_000], len(layer), release)
        async with node.client() as client:
            pulling = asyncio.create_task(client.pull(f"{registry.netloc}/app:1"))
            active = {"digest": digest(layer), "state": "active", "bytes": 70_000, "totalBytes": len(layer)}
            shown: list[dict[str, object]] = []
            async with asyncio.timeout(60):
                while not shown or shown[0]["layers"] != [active]:
                    status = await client.runtime.Status(cri.StatusRequest(verbose=True))
                    shown = json.loads(status.info["pulls"])
            assert shown[0]["image"] == f"{registry.netloc}/app:1"
            pulling.cancel()
            release.set()
