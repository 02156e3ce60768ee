"""VOLUMEs of a container's image, over a protect.v1 in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from tests.support.cri.cri_node import FakeImages, Rig, rig
from tests.support.cri.fake_protect import FakeProtect
from xenpod_proto.cri.v1 import runtime_pb2 as cri


def images(*volumes: str) -> FakeImages:
    """Images whose root has these VOLUMEs."""
    made = FakeImages()
    made.image = replace(made.image, volumes=volumes)
    return made


async def seen(node: Rig, mounts: Iterable[cri.Mount] = ()) -> tuple[dict[str, str], list[str]]:
    """Of a new container: the volumes for protectd by name, and the destinations of its mounts, in order."""
    container = await node.container(await node.pod(), mounts=mounts)
    request = node.protect.requests[container]
    binds = {bind["destination"]: bind for bind in json.loads(request.oci_config)["mounts"]}
    for volume in request.anonymous_volumes:
        bind = binds[volume.path]
        assert bind["source"] == f"/run/xenpod/containers/{container}/volumes/{volume.name}"
        assert bind["type"] == "bind" and bind["options"] == ["rbind", "rprivate", "rw"]
    return {volume.name: volume.path for volume in request.anonymous_volumes}, list(binds)


def mount(path: str) -> cri.Mount:
    return cri.Mount(container_path=path, host_path="/srv")


async def test_each_volume_of_the_image_becomes_a_mount(tmp_path: Path) -> None:
    async with rig(tmp_path, images=images("/data/deep", "/data", "/var/lib/x")) as node:
        volumes, places = await seen(node)
        assert volumes == {"image-0": "/data", "image-1": "/data/deep", "image-2": "/var/lib/x"}
        assert places.index("/data") < places.index("/data/deep")


async def test_paths_of_volumes_are_cleaned_as_in_containerd(tmp_path: Path) -> None:
    async with rig(tmp_path, images=images("/a/", "//a/./", "b", "../../c", "./d/e/..", "C:/f")) as node:
        volumes, _ = await seen(node)
        assert set(volumes.values()) == {"/a", "/b", "/c", "/d", "/C:/f"}


async def test_mount_at_the_path_replaces_the_volume(tmp_path: Path) -> None:
    async with rig(tmp_path, images=images("/data/", "/other")) as node:
        volumes, places = await seen(node, [mount("//data"), mount("/other/below")])
        assert list(volumes.values()) == ["/other"]
        assert places.count("/data") == 1 and places.index("/other") < places.index("/other/below")


async def test_mount_above_a_volume_is_mounted_first(tmp_path: Path) -> None:
    async with rig(tmp_path, images=images("/data/deep")) as node:
        volumes, places = await seen(node, [mount("/data")])
        assert list(volumes.values()) == ["/data/deep"]
        assert places.index("/data") < places.index("/data/deep")


async def test_mounts_of_every_container_win_over_volumes(tmp_path: Path) -> None:
    names = ("/proc", "/dev", "/dev/shm", "/sys", "/etc/hosts", "/etc/resolv.conf", "/etc", "/dev/own")
    async with rig(tmp_path, images=images(*names)) as node:
        volumes, places = await seen(node)
        assert set(volumes.values()) == {"/etc", "/dev/own"}
        assert places.index("/etc") < places.index("/etc/hosts")


@pytest.mark.parametrize(
    ("volumes", "cause"),
    [
        (("/",), "VOLUME '/' of image localhost/busybox:1: the image itself is there"),
        (("a/..",), "VOLUME 'a/..' of image localhost/busybox:1: the image itself is there"),
        (("/proc/1",), "VOLUME '/proc/1' of image localhost/busybox:1: /proc is the kernel's own"),
        (("/a\0b",), "not a path of at most 4095 bytes"),
        (("/" + "x" * 4095,), "not a path of at most 4095 bytes"),
        ([f"/v{n}" for n in range(65)], "VOLUME of image localhost/busybox:1: 65 volumes are more than 64"),
        ([f"/{n:02}" + "x" * 1022 for n in range(64)], "their paths have 65600 bytes together"),
    ],
)
async def test_impossible_volume_of_an_image_is_refused(
    tmp_path: Path, volumes: Iterable[str], cause: str
) -> None:
    async with rig(tmp_path, images=images(*volumes)) as node:
        pod = await node.pod()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await node.container(pod)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert cause in (raised.value.details() or "")
        assert await node.containers() == [] and not node.protect.requests


async def test_volumes_at_the_limits_are_accepted(tmp_path: Path) -> None:
    async with rig(tmp_path, images=images(*(f"/{n:02}" + "x" * 1021 for n in range(64)))) as node:
        volumes, _ = await seen(node)
        assert len(volumes) == 64


async def test_pod_of_an_older_agent_has_no_volumes(tmp_path: Path) -> None:
    protect = FakeProtect()
    protect.anonymous_volumes = False
    async with rig(tmp_path, protect, images=images("/data")) as node:
        volumes, places = await seen(node)
        assert volumes == {} and "/data" not in places
