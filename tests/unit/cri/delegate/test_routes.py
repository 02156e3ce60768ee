"""Each RPC goes to the runtime that has the pod, byte for byte, with the caller's deadline and metadata."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from daemonkit.rpc.channels import channel
from tests.support.cri.cri_node import Rig, pod_config
from tests.support.cri.mixed_rig import Mixed
from tests.support.cri.other_runtime import RUNTIME, Status
from xenpod_proto.cri.v1 import runtime_pb2 as cri

UNKNOWN = b"\xfa\x3e\x05extra"
"""Field 1007, unknown to CRI."""
POD, CONTAINER = "d".ljust(64, "1"), "e".ljust(64, "1")


async def raw(ours: Rig, method: str, request: bytes, **options: Any) -> bytes:
    """Make a call with encoded messages."""
    async with channel(ours.config.listen) as link:
        answer: bytes = await link.unary_unary(f"/{RUNTIME}/{method}", None, None)(request, **options)
        return answer


async def test_a_pod_of_another_handler_is_the_delegates(mixed: Mixed) -> None:
    theirs = await mixed.ours.pod("agent", handler="runc")
    classless = await mixed.ours.pod("plain")
    ours = await mixed.ours.pod("web", handler="xenpod")
    assert set(mixed.other.pods) == {theirs, classless}
    assert set(mixed.ours.protect.zones) == {ours}
    assert set(await mixed.ours.pods()) == {theirs, classless, ours}


async def test_a_pods_calls_in_the_delegate_are_passed_on(mixed: Mixed) -> None:
    pod = await mixed.ours.pod("agent", handler="runc")
    container = await mixed.ours.started(pod)
    assert mixed.other.containers[container].state == cri.CONTAINER_RUNNING
    assert await mixed.ours.containers() == [container]
    await mixed.ours.cri.RemoveContainer(cri.RemoveContainerRequest(container_id=container))
    await mixed.ours.cri.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod))
    await mixed.ours.cri.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=pod))
    assert not mixed.other.pods and not mixed.other.containers
    assert not mixed.ours.protect.calls or "CreateZone" not in mixed.ours.protect.calls


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("RunPodSandbox", cri.RunPodSandboxRequest(config=pod_config(), runtime_handler="runc")),
        ("PodSandboxStatus", cri.PodSandboxStatusRequest(pod_sandbox_id=POD)),
        ("ContainerStatus", cri.ContainerStatusRequest(container_id=CONTAINER)),
        ("ExecSync", cri.ExecSyncRequest(container_id=CONTAINER, cmd=["ls"])),
        ("Exec", cri.ExecRequest(container_id=CONTAINER, cmd=["ls"])),
        ("Attach", cri.AttachRequest(container_id=CONTAINER)),
        ("PortForward", cri.PortForwardRequest(pod_sandbox_id=POD)),
        ("UpdateContainerResources", cri.UpdateContainerResourcesRequest(container_id=CONTAINER)),
        ("UpdatePodSandboxResources", cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id=POD)),
        ("CheckpointContainer", cri.CheckpointContainerRequest(container_id=CONTAINER)),
        ("ReopenContainerLog", cri.ReopenContainerLogRequest(container_id=CONTAINER)),
        ("ContainerStats", cri.ContainerStatsRequest(container_id=CONTAINER)),
        ("PodSandboxStats", cri.PodSandboxStatsRequest(pod_sandbox_id=POD)),
        ("StopContainer", cri.StopContainerRequest(container_id=CONTAINER)),
        ("CreateContainer", cri.CreateContainerRequest(pod_sandbox_id=POD)),
    ],
)
async def test_bytes_pass_as_they_are(mixed: Mixed, method: str, request_: Any) -> None:
    """Also fields outside this version of CRI."""
    sent = request_.SerializeToString() + UNKNOWN
    answer = b"\x0a\x03new" + UNKNOWN
    mixed.other.answers[method] = answer
    assert await raw(mixed.ours, method, sent) == answer
    assert [seen.request for seen in mixed.other.asked(method)] == [sent]


async def test_a_status_of_the_delegate_is_unchanged(mixed: Mixed) -> None:
    trailing = (("grpc-status-details-bin", b"\x08\x05\x12\x04gone"), ("retry-after", "3"))
    said = Status(grpc.StatusCode.NOT_FOUND, "container \u201cx\u201d: " + "long " * 2000, trailing)
    mixed.other.answers["ContainerStatus"] = said
    options = (("grpc.max_metadata_size", 1 << 20), ("grpc.absolute_max_metadata_size", 1 << 20))
    async with channel(mixed.ours.config.listen, options) as link:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await link.unary_unary(f"/{RUNTIME}/ContainerStatus", None, None)(b"\x0a\x03abc")
    assert (caught.value.code(), caught.value.details()) == (said.code, said.details)
    assert caught.value.trailing_metadata() == grpc.aio.Metadata(*trailing)


async def test_the_callers_deadline_and_metadata_are_passed_on(mixed: Mixed) -> None:
    mixed.other.answers["ExecSync"] = b""
    request = cri.ExecSyncRequest(container_id=CONTAINER).SerializeToString()
    await raw(mixed.ours, "ExecSync", request, timeout=500, metadata=(("traceparent", "00-1-2-01"),))
    await raw(mixed.ours, "ExecSync", request)
    first, second = mixed.other.asked("ExecSync")
    assert first.remaining is not None and 300 < first.remaining < 510
    assert first.metadata["traceparent"] == "00-1-2-01"
    assert second.remaining is None


async def test_a_caller_who_goes_cancels_the_call(mixed: Mixed) -> None:
    mixed.other.hanging.add("ExecSync")
    request = cri.ExecSyncRequest(container_id=CONTAINER)
    call = mixed.ours.cri.ExecSync(request)
    async with asyncio.timeout(60):
        while not mixed.other.asked("ExecSync"):
            mixed.other.changed.clear()
            await mixed.other.changed.wait()
        call.cancel()
        while mixed.other.cancelled != ["ExecSync"]:
            mixed.other.changed.clear()
            await mixed.other.changed.wait()


async def test_an_unreadable_request_is_refused(mixed: Mixed) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await raw(mixed.ours, "StopContainer", b"\x0a\xff")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not mixed.other.asked("StopContainer")


async def test_version_is_ours(mixed: Mixed) -> None:
    assert (await mixed.ours.cri.Version(cri.VersionRequest())).runtime_name == "xenpod"
