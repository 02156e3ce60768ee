"""The process namespace of another container (mode TARGET), over a protect.v1 in memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.support.cri.cri_node import Rig, rig
from xenpod_proto.cri.v1 import runtime_pb2 as cri


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


def _linux(**fields: Any) -> cri.LinuxContainerConfig:
    options = cri.NamespaceOption(**fields)
    return cri.LinuxContainerConfig(
        security_context=cri.LinuxContainerSecurityContext(namespace_options=options)
    )


def _process_namespace(node: Rig, container: str) -> list[dict[str, str]]:
    oci = json.loads(node.protect.requests[container].oci_config)
    return [each for each in oci["linux"]["namespaces"] if each["type"] == "pid"]


async def test_a_target_is_joined_by_its_process(node: Rig) -> None:
    pod = await node.pod()
    target = await node.started(pod, "target", linux=_linux(pid=cri.CONTAINER))
    node.protect.workloads[target].pid = 4711
    debugger = await node.container(pod, "debugger", linux=_linux(pid=cri.TARGET, target_id=target))
    joined = [{"type": "pid", "path": "/proc/4711/ns/pid"}]
    assert _process_namespace(node, debugger) == joined
    await node.cri.StartContainer(cri.StartContainerRequest(container_id=debugger))
    node.protect.workloads[debugger].pid = 4712
    other = await node.container(pod, "other", linux=_linux(pid=cri.TARGET, target_id=debugger))
    assert _process_namespace(node, other) == [{"type": "pid", "path": "/proc/4712/ns/pid"}]


@pytest.mark.parametrize("mode", [cri.POD, cri.NODE])
async def test_a_target_without_processes_of_its_own(node: Rig, mode: int) -> None:
    pod = await node.pod(handler="xenpod-zone")
    target = await node.started(pod, "target", linux=_linux(pid=mode))
    debugger = await node.container(pod, "debugger", linux=_linux(pid=cri.TARGET, target_id=target))
    assert _process_namespace(node, debugger) == []


async def test_impossible_targets_are_refused(node: Rig) -> None:
    pod, elsewhere = await node.pod(), await node.pod("elsewhere")
    created = await node.container(pod, "created", linux=_linux(pid=cri.CONTAINER))
    foreign = await node.started(elsewhere, linux=_linux(pid=cri.CONTAINER))
    ended = await node.started(pod, "ended", linux=_linux(pid=cri.CONTAINER))
    assert node.protect.workloads[ended].pid == 0
    for target, code, words in (
        (created, grpc.StatusCode.FAILED_PRECONDITION, "it is created"),
        (foreign, grpc.StatusCode.INVALID_ARGUMENT, "another pod"),
        (ended, grpc.StatusCode.FAILED_PRECONDITION, "has ended"),
        ("f" * 64, grpc.StatusCode.NOT_FOUND, "f" * 64),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await node.container(pod, "debugger", linux=_linux(pid=cri.TARGET, target_id=target))
        assert raised.value.code() is code and words in (raised.value.details() or "")


async def test_privileged_needs_a_privileged_pod(node: Rig) -> None:
    security = cri.LinuxSandboxSecurityContext(
        privileged=True, namespace_options=cri.NamespaceOption(pid=cri.NODE, ipc=cri.NODE)
    )
    pod = await node.pod(handler="xenpod-zone", linux=cri.LinuxPodSandboxConfig(security_context=security))
    wanted = cri.LinuxContainerSecurityContext(privileged=True)
    container = await node.container(pod, linux=cri.LinuxContainerConfig(security_context=wanted))
    oci = json.loads(node.protect.requests[container].oci_config)
    assert oci["linux"]["resources"]["devices"] == [{"allow": True, "access": "rwm"}]
