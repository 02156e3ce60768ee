"""Kernel images on a real node, whose fake zones have no kernels: a clear message, and nothing is left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from protectctl.__main__ import main
from tests.support.cri.cri_daemons import CriNode, needs_node
from tests.support.images.images import write_layout
from tests.support.images.kernel_images import kernel_image
from tests.support.session.checkpoints import killed_at
from tools.localnode.cri_client import Client
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node]

CHOSEN, HANDLED = "registry.example/kernels/chosen:1", "registry.example/other/handled:1"
IMAGES = {CHOSEN: kernel_image(), HANDLED: kernel_image(image=b"another", addons_squashfs=None)}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[CriNode]:
    made = CriNode(tmp_path)
    made.configure(kernels={"allow": ["registry.example/kernels/*"]})
    await made.start()
    yield made
    made.configure(handlers={})
    await made.close()


async def _protect(node: CriNode, *arguments: str) -> int:
    words = ["image", arguments[0], "--cri-socket", str(node.daemon.socket), *arguments[1:]]
    return await asyncio.to_thread(main, words)


async def _failed(client: Client, handler: str, annotation: str) -> grpc.aio.AioRpcError:
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name="p", uid="u", namespace="default"),
        annotations={"xenpod.dev/kernel": annotation} if annotation else {},
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        request = cri.RunPodSandboxRequest(config=config, runtime_handler=handler)
        await client.runtime.RunPodSandbox(request, timeout=60)
    return caught.value


async def _refused(client: Client, handler: str, annotation: str) -> grpc.aio.AioRpcError:
    """Check that the pod is refused, and nothing of the pod is left."""
    fault = await _failed(client, handler, annotation)
    assert await client.pods() == []
    return fault


@pytest.mark.parametrize(("handler", "choice", "name"), [("fast", "", HANDLED), ("", CHOSEN, CHOSEN)])
async def test_kernel_image_for_a_fake_zone_is_refused(
    node: CriNode, tmp_path: Path, handler: str, choice: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = write_layout(tmp_path / "layout", IMAGES[name], name)
    assert await _protect(node, "import", str(layout)) == 0
    await node.daemon.stop()
    node.configure(handlers={"fast": {"kernel": HANDLED}} if handler else {})
    await node.daemon.start()
    async with node.client() as client:
        assert await _protect(node, "remove", name) == 0
        absent = await _refused(client, handler, choice)
        assert (absent.code(), f"protect image pull {name}" in str(absent.details())) == (
            grpc.StatusCode.NOT_FOUND,
            True,
        )
        assert await _protect(node, "import", str(layout)) == 0
        refused = await _refused(client, handler, choice)
        assert refused.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert f"share the host's kernel, and cannot boot {name}" in str(refused.details())
        await node.nothing_left()
        # The kernel was taken out on the way, and nobody holds the kernel.
        capsys.readouterr()
        assert await _protect(node, "list-kernels", "--output", "json") == 0
        (listed,) = json.loads(capsys.readouterr().out)["kernels"]
        assert (listed["taken_out"], listed["version"], listed["fault"]) == (True, "6.12.4", "")
        assert (listed["image"]["tags"], listed["image"]["zones"]) == ([name], [])
        assert listed["image"]["pinned"] == (name == HANDLED)
        await _protect(node, "verify")
        assert "sound" in capsys.readouterr().out
        await _protect(node, "gc")
        left = (await client.image.ListImages(cri.ListImagesRequest())).images
        assert bool(left) == (name == HANDLED)
        folders = list((node.folder / "state/images/kernels").iterdir())
        assert bool(folders) == (name == HANDLED)


async def test_list_kernels_shows_chosen_and_broken_kernels(
    node: CriNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = kernel_image(metadata=b"\x1b[2J nonsense")
    for number, (name, image) in enumerate({**IMAGES, "registry.example/x:1": broken}.items()):
        layout = write_layout(tmp_path / f"layout{number}", image, name)
        assert await _protect(node, "import", str(layout)) == 0
    capsys.readouterr()
    assert await _protect(node, "list-kernels") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["IMAGE", "DIGEST", "KERNEL", "SIZE", "ZONES", "STATE"]
    (chosen,) = (line for line in lines if CHOSEN in line)
    assert "6.12.4 zone" in chosen
    (bad,) = (line for line in lines if "registry.example/x:1" in line)
    assert "line 1 of /kernel/metadata is not KEY=VALUE" in bad and "\x1b" not in bad


@killed_at(["kernel-take.layer-read", "kernel-take.named"])
async def test_killed_while_a_kernel_is_taken_out(node: CriNode, tmp_path: Path, step: str) -> None:
    """Nothing is left of the pod, and nobody holds the image."""
    layout = write_layout(tmp_path / "layout", IMAGES[CHOSEN], CHOSEN)
    assert await _protect(node, "import", str(layout)) == 0
    await node.daemon.stop()
    node.configure(faults={"kill_at": step})
    await node.daemon.start()
    async with node.client() as client:
        assert (await _failed(client, "", CHOSEN)).code() is grpc.StatusCode.UNAVAILABLE
    node.configure(faults={"kill_at": ""})
    await node.daemon.restart()
    async with node.client() as client:
        assert await client.pods() == []
        await node.nothing_left()
        images = node.folder / "state" / "images"
        assert list((images / "ingest").iterdir()) == []
        assert await _protect(node, "remove", CHOSEN) == 0
        assert [path for part in ("kernels", "blobs") for path in (images / part).rglob("*/*")] == []
