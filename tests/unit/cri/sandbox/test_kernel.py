"""Pods whose zones boot from kernel images: requests to protectd, and holds of the image."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest

from cri.config import KERNEL, CriConfig, HandlerConfig
from daemonkit.faults import Refused
from images.image_settings import KernelSettings
from tests.support.cri.cri_node import IMAGE, FakeImages, Rig, node_config, rig
from xenpod_proto.cri.v1 import runtime_pb2 as cri

GPU = "registry.example/kernels/gpu:1"
SMALL = "registry.example/kernels/small:latest"


def _config(folder: Path) -> CriConfig:
    handlers = {"xenpod": HandlerConfig(), "xenpod-gpu": HandlerConfig(profile="gpu", kernel=GPU)}
    kernels = KernelSettings(allow=("registry.example/kernels/*",))
    return replace(node_config(folder), handlers=handlers, kernels=kernels)


def _images() -> FakeImages:
    images = FakeImages()
    images.others = {name: replace(IMAGE, id=f"sha256:{name}") for name in (GPU, SMALL)}
    return images


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path, images=_images(), config=_config(tmp_path)) as made:
        yield made


def _asked(node: Rig, pod: str) -> str:
    request = node.protect.zone_requests[pod]
    return request.kernel.image_path if request.HasField("kernel") else ""


@pytest.mark.parametrize(
    ("handler", "choice", "expected"),
    [("", "", ""), ("xenpod-gpu", "", GPU), ("xenpod-gpu", SMALL, SMALL), ("", SMALL[:-7], SMALL)],
)
async def test_the_pods_choice_goes_before_its_handlers(
    node: Rig, handler: str, choice: str, expected: str
) -> None:
    pod = await node.pod(handler=handler, annotations={KERNEL: choice} if choice else {})
    assert _asked(node, pod) == (f"/kernels/sha256:{expected}/image" if expected else "")
    assert node.images.held == ({f"zone:{pod}": {f"sha256:{expected}"}} if expected else {})
    await node.cri.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod))
    assert node.images.held == {}


@pytest.mark.parametrize(
    ("choice", "code", "text"),
    [
        ("registry.example/other:1", grpc.StatusCode.PERMISSION_DENIED, "kernels.allow"),
        ("registry.example/kernels/absent:1", grpc.StatusCode.NOT_FOUND, "protect image pull"),
        ("not a name", grpc.StatusCode.INVALID_ARGUMENT, KERNEL),
    ],
)
async def test_a_forbidden_choice_is_refused(
    node: Rig, choice: str, code: grpc.StatusCode, text: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=text) as caught:
        await node.pod(annotations={KERNEL: choice})
    assert caught.value.code() is code
    assert node.images.held == {} and not node.network.attached and await node.pods() == []


async def test_a_failed_pod_holds_nothing(node: Rig) -> None:
    node.network.failure = Refused("attach", "pod", "no addresses left")
    with pytest.raises(grpc.aio.AioRpcError):
        await node.pod(handler="xenpod-gpu")
    assert node.images.held == {}


async def test_held_again_after_a_restart(tmp_path: Path) -> None:
    async with rig(tmp_path, images=_images(), config=_config(tmp_path)) as before:
        pod = await before.pod(handler="xenpod-gpu")
        stopped = await before.pod("other", handler="xenpod-gpu")
        await before.cri.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=stopped))
    async with rig(tmp_path, before.protect, before.network, _images(), config=_config(tmp_path)) as after:
        assert after.images.held == {f"zone:{pod}": {f"sha256:{GPU}"}}
        await after.cri.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=pod))
        assert after.images.held == {}
