"""Images as volumes of a container, over a protect.v1 in memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from cri.checks.mounts import is_image
from daemonkit.faults import Refused
from tests.support.cri.cri_node import IMAGE, FakeImages, FakeNetwork, rig
from tests.support.cri.fake_protect import FakeProtect
from xenpod_proto.cri.v1 import runtime_pb2 as cri

MODEL = replace(
    IMAGE,
    id="sha256:" + "7" * 64,
    reference="localhost/model@sha256:" + "8" * 64,
    filesystems=("/images/model.squashfs", "/images/model-2.squashfs"),
)


def _mount(path: str, **fields: object) -> cri.Mount:
    image = cri.ImageSpec(image="model", user_specified_image="localhost/model:1")
    return cri.Mount(**({"container_path": path, "readonly": True, "image": image} | fields))  # type: ignore[arg-type]


def _images() -> FakeImages:
    images = FakeImages()
    images.others["model"] = MODEL
    return images


async def test_image_volumes_reach_protectd_and_show_in_the_status(tmp_path: Path) -> None:
    async with rig(tmp_path, images=_images()) as node:
        pod = await node.pod()
        mounts = [_mount("/models/part", image_sub_path="a/b"), _mount("/models")]
        container = await node.container(pod, mounts=mounts)
        request = node.protect.requests[container]
        stack = [("/images/model.squashfs", "squashfs"), ("/images/model-2.squashfs", "squashfs")]
        asked = [
            (v.name, [(one.path, one.type) for one in v.filesystems], v.sub_path)
            for v in request.image_volumes
        ]
        assert asked == [("0", stack, "a/b"), ("1", stack, "")]
        mounted = json.loads(request.oci_config)["mounts"]
        binds = [bind for bind in mounted if bind["destination"].startswith("/models")]
        base = f"/run/xenpod/containers/{container}/volumes"
        # The lower mount comes after the upper.
        assert [(bind["destination"], bind["source"]) for bind in binds] == [
            ("/models", f"{base}/1"),
            ("/models/part", f"{base}/0"),
        ]
        assert all({"ro", "nodev"} < set(bind["options"]) for bind in binds)
        status = await node.status(container)
        assert [mount.image.image_ref for mount in status.mounts] == [MODEL.id] * 2
        assert status.mounts[0].image_sub_path == "a/b" and status.mounts[0].readonly
        assert status.mounts[0].image.image == "model"
        assert node.images.held == {container: {IMAGE.id, MODEL.id}}
        await node.cri.RemoveContainer(cri.RemoveContainerRequest(container_id=container))
        assert node.images.held == {}


async def test_image_volumes_are_held_across_a_restart(tmp_path: Path) -> None:
    protect, network, images = FakeProtect(), FakeNetwork(), _images()
    async with rig(tmp_path, protect, network, images) as node:
        container = await node.container(await node.pod(), mounts=[_mount("/m")])
    images.held.clear()
    async with rig(tmp_path, protect, network, images) as node:
        assert images.held == {container: {IMAGE.id, MODEL.id}}
        assert (await node.status(container)).mounts[0].image.image_ref == MODEL.id


def test_mount_with_an_image_name_is_an_image_volume() -> None:
    assert is_image(_mount("/m"))
    assert not is_image(cri.Mount(host_path="/srv", container_path="/m"))
    # A client that fills every field with an empty value.
    assert not is_image(cri.Mount(host_path="/srv", image=cri.ImageSpec()))


async def test_images_are_mended_before_a_container_gets_them(tmp_path: Path) -> None:
    """The images of its root and its volumes; a failed repair leaves no container behind."""
    images = _images()
    async with rig(tmp_path, images=images) as node:
        pod = await node.pod()
        await node.container(
            pod, mounts=[_mount("/models"), cri.Mount(container_path="/h", host_path="/tmp")]
        )
        assert images.mended == [["busybox", "model"]]
        images.beyond_repair = Refused("rebuild image", "model", "it is damaged", "pull it again")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await node.container(pod, "second", mounts=[_mount("/models")])
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "it is damaged (pull it again)" in (caught.value.details() or "")
        assert len(node.daemon.records.containers.all()) == 1 and len(images.held) == 1
