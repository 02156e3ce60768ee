"""The runtime itself, and its images."""

from __future__ import annotations

import asyncio
import json
import signal
import time

import pytest

from tests.support.cri.conformance import SuiteStage, refused
from tests.support.cri.cri_daemons import IMAGE, needs_node
from tests.support.cri.events import PATIENCE
from tests.support.cri.stage import FOREVER
from tools.localnode.cri_client import Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="session")]

SOON = 8.0
"""Seconds: less than any call to protectd may take."""


async def test_version_names_xenpod_and_the_api(stage: SuiteStage) -> None:
    reply = await stage.runtime.Version(cri.VersionRequest(), timeout=PATIENCE)
    assert (reply.version, reply.runtime_name, reply.runtime_api_version) == ("0.1.0", "xenpod", "v1")
    assert reply.runtime_version


async def test_status_is_ready_and_verbose_shows_details(stage: SuiteStage) -> None:
    reply = await stage.runtime.Status(cri.StatusRequest(), timeout=PATIENCE)
    said = {one.type: one.status for one in reply.status.conditions}
    del said["HostPrepared"]  # true of a prepared host
    assert said == {
        "RuntimeReady": True, "NetworkReady": True, "HandlersReady": True, "ZoneModePreferred": True,
    }  # fmt: skip
    assert [handler.name for handler in reply.runtime_handlers] == ["", "scratch", "xenpod", "zone"]
    assert reply.features.supplemental_groups_policy and not reply.info
    verbose = await stage.runtime.Status(cri.StatusRequest(verbose=True), timeout=PATIENCE)
    info = {name: json.loads(value) for name, value in verbose.info.items()}
    assert info["config"]["state_dir"] == str(stage.node.folder / "state")
    assert info["versions"]["cri"] == "v1" and info["versions"]["protectd"]
    assert "features" in info["handlers"]["xenpod"] and info["cni"]["plugins"]
    toolstack = info["toolstack"]
    assert toolstack["name"] == stage.toolstack
    assert toolstack["securityBoundary"] is (stage.toolstack == "libxl")
    assert toolstack["capabilities"]["pv"] is True


async def test_pod_cidr_is_taken_and_invalid_cidr_refused(stage: SuiteStage) -> None:
    reply = await stage.runtime.RuntimeConfig(cri.RuntimeConfigRequest(), timeout=PATIENCE)
    assert reply.linux.cgroup_driver in (cri.SYSTEMD, cri.CGROUPFS)
    network = cri.NetworkConfig(pod_cidr="10.99.0.0/24")
    request = cri.UpdateRuntimeConfigRequest(runtime_config=cri.RuntimeConfig(network_config=network))
    await stage.runtime.UpdateRuntimeConfig(request, timeout=PATIENCE)
    verbose = await stage.runtime.Status(cri.StatusRequest(verbose=True), timeout=PATIENCE)
    assert json.loads(verbose.info["cni"])["podCIDR"] == "10.99.0.0/24"
    with refused("INVALID_ARGUMENT", "not a network"):
        network.pod_cidr = "not a network"
        request.runtime_config.network_config.CopyFrom(network)
        await stage.runtime.UpdateRuntimeConfig(request, timeout=PATIENCE)


async def test_a_checkpoint_is_refused_with_its_reason(stage: SuiteStage, shared_pod: Pod) -> None:
    container = await stage.started(shared_pod)
    request = cri.CheckpointContainerRequest(container_id=container, location="/nowhere/checkpoint.tar")
    with refused("UNIMPLEMENTED", "zone's kernel"):
        await stage.runtime.CheckpointContainer(request, timeout=PATIENCE)


async def test_pulled_image_is_listed_streamed_and_counted(stage: SuiteStage) -> None:
    images = stage.client.image
    spec = cri.ImageSpec(image=IMAGE)
    found = await images.ImageStatus(cri.ImageStatusRequest(image=spec), timeout=PATIENCE)
    image = found.image
    assert image.id == stage.image and list(image.repo_tags) == [IMAGE] and image.size > 0
    assert image.repo_digests[0].startswith(IMAGE.partition(":")[0] + "@sha256:")
    listed = await images.ListImages(cri.ListImagesRequest(), timeout=PATIENCE)
    stream = images.StreamImages(cri.StreamImagesRequest(), timeout=PATIENCE)
    streamed = [item async for part in stream for item in part.images]
    assert [one.id for one in listed.images] == [one.id for one in streamed]
    assert stage.image in [one.id for one in streamed]  # beside images of other tests
    wanted = cri.ImageFilter(image=cri.ImageSpec(image="registry.test/other:1"))
    none = await images.ListImages(cri.ListImagesRequest(filter=wanted), timeout=PATIENCE)
    assert list(none.images) == []
    usage = await images.ImageFsInfo(cri.ImageFsInfoRequest(), timeout=PATIENCE)
    assert usage.image_filesystems[0].used_bytes.value > 0
    assert usage.image_filesystems[0].fs_id.mountpoint.startswith("/")
    assert abs(usage.image_filesystems[0].timestamp - time.time_ns()) < PATIENCE * 10**9


async def test_an_image_goes_and_comes_back(stage: SuiteStage) -> None:
    images = stage.client.image
    spec = cri.ImageSpec(image=IMAGE)
    try:
        await images.RemoveImage(cri.RemoveImageRequest(image=spec), timeout=PATIENCE)
        await images.RemoveImage(cri.RemoveImageRequest(image=spec), timeout=PATIENCE)
        gone = await images.ImageStatus(cri.ImageStatusRequest(image=spec), timeout=PATIENCE)
        assert not gone.HasField("image")
    finally:
        assert await stage.client.pull(IMAGE) == stage.image
    with refused("NOT_FOUND", "registry.test/none"):
        await stage.client.pull("registry.test/none:1")


async def test_polled_calls_are_answered_while_protectd_is_silent(stage: SuiteStage, shared_pod: Pod) -> None:
    """Also while protectd, and with protectd every zone, keeps silent."""
    container = await stage.started(shared_pod, FOREVER)
    daemon = stage.node.protectd.daemon.process
    assert daemon is not None
    daemon.send_signal(signal.SIGSTOP)
    try:
        answers = await asyncio.gather(
            stage.runtime.ListPodSandbox(cri.ListPodSandboxRequest(), timeout=SOON),
            stage.runtime.ListContainers(cri.ListContainersRequest(), timeout=SOON),
            stage.runtime.PodSandboxStatus(
                cri.PodSandboxStatusRequest(pod_sandbox_id=shared_pod.id), timeout=SOON
            ),
            stage.runtime.ContainerStatus(cri.ContainerStatusRequest(container_id=container), timeout=SOON),
            stage.runtime.Version(cri.VersionRequest(), timeout=SOON),
            stage.runtime.Status(cri.StatusRequest(), timeout=SOON),
            stage.runtime.RuntimeConfig(cri.RuntimeConfigRequest(), timeout=SOON),
            stage.client.image.ListImages(cri.ListImagesRequest(), timeout=SOON),
        )
    finally:
        daemon.send_signal(signal.SIGCONT)
    assert shared_pod.id in [item.id for item in answers[0].items]
    assert container in [item.id for item in answers[1].containers]
    assert answers[2].status.state == cri.SANDBOX_READY
    assert answers[3].status.state == cri.CONTAINER_RUNNING
