"""Image volumes: a container's view of another image, and the lifetime of the image."""

from __future__ import annotations

import pytest
import pytest_asyncio

from tests.support.cri.conformance import SuiteStage, refused
from tests.support.cri.cri_daemons import needs_node
from tests.support.cri.events import PATIENCE
from tools.localnode import images, layers, registry
from tools.localnode.cri_client import Pod
from tools.localnode.images import PushedImage
from tools.localnode.layers import LayerEntry
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="session")]
NAME = "models.test/model:1"


def model() -> PushedImage:
    """No program in the image, and nothing to run a program by."""
    layer = layers.layer(
        LayerEntry("weights"),
        LayerEntry("weights/one", 0o644, b"1111"),
        LayerEntry("weights/deep"),
        LayerEntry("weights/deep/two", 0o644, b"2222"),
        LayerEntry("script", 0o755, b"#!/bin/sh\necho it runs\n"),
    )
    return PushedImage([layer], {})


@pytest_asyncio.fixture(loop_scope="session")
async def pulled(stage: SuiteStage, tmp_path_factory: pytest.TempPathFactory) -> str:
    async with registry.serve_registry(tmp_path_factory.mktemp("models")) as address:
        images.push(address, NAME.partition("/")[2], model())
        registry.mirror(stage.node.certs, NAME.partition("/")[0], address)
        return await stage.client.pull(NAME)


def volume(image: str, path: str = "/m", **more: object) -> cri.Mount:
    spec = cri.ImageSpec(image=image, user_specified_image=NAME)
    return cri.Mount(**{"container_path": path, "image": spec, "readonly": True} | more)  # type: ignore[arg-type]


async def known(stage: SuiteStage, image: str) -> bool:
    request = cri.ImageStatusRequest(image=cri.ImageSpec(image=image))
    reply = await stage.client.image.ImageStatus(request, timeout=PATIENCE)
    return bool(reply.image.id)


async def test_an_image_in_two_containers(stage: SuiteStage, shared_pod: Pod, pulled: str) -> None:
    mounts = [
        volume(pulled, "/m/deep", image_sub_path="weights/deep"),
        volume(pulled),
        volume(pulled, "/one", image_sub_path="weights/one"),
    ]
    container = await stage.started(shared_pod, mounts=[volume(NAME)])
    with_parts = await stage.started(shared_pod, mounts=mounts[1:])
    assert (
        await stage.output(container, "cat /m/weights/one /m/weights/deep/two; /m/script")
        == "11112222it runs"
    )
    assert await stage.output(with_parts, "cat /one; ls /m") == "1111script\nweights"
    code, text = await stage.says(with_parts, "echo x >/m/new")
    assert code != 0 and "Read-only" in text
    shown = (await stage.status(with_parts)).mounts
    assert [mount.image.image_ref for mount in shown] == [pulled, pulled]
    assert shown[1].image_sub_path == "weights/one" and shown[0].image.user_specified_image == NAME


async def test_removed_image_stays_while_a_container_mounts_its_volume(
    stage: SuiteStage, shared_pod: Pod, pulled: str
) -> None:
    container = await stage.started(shared_pod, mounts=[volume(pulled)])
    request = cri.RemoveImageRequest(image=cri.ImageSpec(image=pulled))
    await stage.client.image.RemoveImage(request, timeout=PATIENCE)
    assert not await known(stage, pulled)
    store = stage.node.folder / "state/images/filesystems"
    assert await stage.output(container, "cat /m/weights/one") == "1111"
    with refused("NOT_FOUND", NAME):
        await stage.create(shared_pod, mounts=[volume(NAME)])
    held = set(store.iterdir())
    await stage.client.remove_container(container)
    stage.made.remove(container)
    assert len(held - set(store.iterdir())) == 1


async def test_invalid_image_volume_is_refused(stage: SuiteStage, shared_pod: Pod, pulled: str) -> None:
    for code, words, mount in (
        ("FAILED_PRECONDITION", "no such path", volume(pulled, image_sub_path="weights/none")),
        ("FAILED_PRECONDITION", "no such path", volume(pulled, image_sub_path="script/below")),
        ("INVALID_ARGUMENT", "clean", volume(pulled, image_sub_path="../etc")),
        ("INVALID_ARGUMENT", "readonly", volume(pulled, readonly=False)),
        ("INVALID_ARGUMENT", "host_path", volume(pulled, host_path="/srv")),
        ("NOT_FOUND", "pull", volume("models.test/none:1")),
    ):
        with refused(code, words):
            await stage.create(shared_pod, mounts=[mount])
