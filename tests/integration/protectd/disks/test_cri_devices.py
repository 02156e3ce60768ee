"""Devices of the host in pods: block volumes, by device plugins, CDI names, annotation and handler."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.cri.cri_daemons import needs_node
from tests.support.cri.stage import DEADLINE, Stage, StageSettings
from tests.support.protect.block_device import block_device, is_free, written
from tests.support.protect.zones import failing
from tools.localnode.cri_client import Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="module")]
WRITE = "echo {} | dd of={} bs=512 conv=notrunc,fsync 2>/dev/null"
ANNOTATION = "xenpod.dev/devices"


@pytest.fixture(scope="module")
def module_device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with block_device(tmp_path_factory.mktemp("device")) as device:
        yield device


@pytest.fixture
def device(module_device: Path) -> Path:
    """An empty device."""
    with module_device.open("r+b") as disk:
        disk.write(bytes(512))
        os.fsync(disk.fileno())
    return module_device


@pytest.fixture(scope="module")
def stage_settings(module_device: Path) -> StageSettings:
    """The device has the name "fast"; the handler "disk" gives it, "asks" allows its annotation."""
    handlers = {
        "disk": {"devices": ["fast"]},
        "asks": {"annotations": [ANNOTATION]},
        "bad": {"devices": ["lost"]},
    }
    devices = {"fast": str(module_device), "lost": "/dev/no-such"}
    return StageSettings({"handlers": handlers}, {"host": {"devices": devices}})


async def run_pod(stage: Stage, handler: str = "", devices: str = "", name: str = "web") -> Pod:
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=name, namespace="default", uid=name),
        annotations={ANNOTATION: devices} if devices else {},
    )
    request = cri.RunPodSandboxRequest(config=config, runtime_handler=handler)
    reply = await stage.client.runtime.RunPodSandbox(request, timeout=DEADLINE)
    return Pod(reply.pod_sandbox_id, config)


async def started(stage: Stage, pod: Pod, **more: Any) -> str:
    config = cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name="main"),
        image=cri.ImageSpec(image=stage.image),
        command=["sleep", "1000"],
        **more,
    )
    request = cri.CreateContainerRequest(pod_sandbox_id=pod.id, config=config, sandbox_config=pod.config)
    made = (await stage.client.runtime.CreateContainer(request, timeout=DEADLINE)).container_id
    await stage.client.start(made)
    return str(made)


def block(host_path: Path | str, container_path: str, permissions: str = "mrw") -> cri.Device:
    return cri.Device(host_path=str(host_path), container_path=container_path, permissions=permissions)


def as_user(uid: int) -> cri.LinuxContainerConfig:
    security = cri.LinuxContainerSecurityContext(
        run_as_user=cri.Int64Value(value=uid), namespace_options=cri.NamespaceOption(pid=cri.CONTAINER)
    )
    return cri.LinuxContainerConfig(security_context=security)


async def test_a_raw_block_volume_of_a_user(stage: Stage, device: Path, tmp_path: Path) -> None:
    """By a link, as the kubelet names the device.

    A user that is not root writes, and afterwards the host has the device.
    """
    link = tmp_path / "volumeDevices"
    link.symlink_to(device)
    pod = await run_pod(stage)
    container = await started(stage, pod, devices=[block(link, "/dev/xvda")], linux=as_user(1000))
    await stage.output(container, WRITE.format("user", "/dev/xvda"))
    assert written(device) == b"user\n" and not is_free(device)
    await stage.client.remove_pod(pod.id)
    assert is_free(device)


async def test_read_only_device_is_read_and_not_written(stage: Stage, device: Path) -> None:
    pod = await run_pod(stage)
    container = await started(stage, pod, devices=[block(device, "/dev/xvda", "r")])
    await stage.output(container, "dd if=/dev/xvda of=/dev/null count=1 2>/dev/null")
    reply = await stage.client.exec(container, "sh", "-c", WRITE.format("no", "/dev/xvda"))
    assert reply.exit_code and written(device) == b""


@pytest.mark.parametrize("way", ["plugin", "cdi", "annotation", "handler"])
async def test_named_device_is_written_and_freed_with_its_pod(stage: Stage, device: Path, way: str) -> None:
    where = "/dev/xenpod/fast"
    handler = {"annotation": "asks", "handler": "disk"}.get(way, "")
    pod = await run_pod(stage, handler, devices=" fast " if way == "annotation" else "")
    asked: dict[str, dict[str, Any]] = {
        "plugin": {"devices": [block(where, "/dev/mine")]},
        "cdi": {"CDI_devices": [cri.CDIDevice(name="xenpod.dev/device=fast")]},
    }
    container = await started(stage, pod, **asked.get(way, {}))
    await stage.output(container, WRITE.format(way, "/dev/mine" if way == "plugin" else where))
    assert written(device) == way.encode() + b"\n"
    await stage.client.remove_pod(pod.id)
    assert is_free(device)


async def test_forbidden_and_missing_devices_are_refused(stage: Stage, device: Path) -> None:
    async with failing(grpc.StatusCode.PERMISSION_DENIED) as said:
        await run_pod(stage, devices="fast")
    assert f"the annotation {ANNOTATION} is not allowed" in said[0]
    async with failing(grpc.StatusCode.FAILED_PRECONDITION) as said:
        await run_pod(stage, "bad")
    assert "its zones have the device lost, and what [host.devices] of protectd.toml has" in said[0]
    async with failing(grpc.StatusCode.NOT_FOUND) as said:
        await run_pod(stage, "asks", devices="fast,nothing")
    assert "no device has this name" in said[0]
    async with failing(grpc.StatusCode.INVALID_ARGUMENT):
        await run_pod(stage, "asks", devices="Fast")
    pod = await run_pod(stage, "disk")
    async with failing(grpc.StatusCode.FAILED_PRECONDITION) as said:
        await run_pod(stage, "disk", name="second")
    assert f"zone {pod.id} has it" in said[0]
