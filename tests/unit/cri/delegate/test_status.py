"""RPCs about the whole node, and the choice of a runtime for a new pod."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from cri.delegate.config import HostNetwork, Unnamed
from tests.support.cri.cri_node import Rig, pod_config
from tests.support.cri.mixed_rig import Mixed, becomes_ready, condition, in_front_of
from tests.support.cri.other_runtime import OtherRuntime, Status, other_runtime, ready
from tests.support.waiting import until
from xenpod_proto.cri.v1 import runtime_pb2 as cri

HOST = cri.LinuxPodSandboxConfig(
    security_context=cri.LinuxSandboxSecurityContext(namespace_options=cri.NamespaceOption(network=cri.NODE))
)


async def status(ours: Rig, verbose: bool = False) -> cri.StatusResponse:
    reply: cri.StatusResponse = await ours.cri.Status(cri.StatusRequest(verbose=verbose))
    return reply


def handlers(reply: cri.StatusResponse) -> dict[str, bool]:
    return {one.name: one.features.recursive_read_only_mounts for one in reply.runtime_handlers}


async def test_a_ready_delegate_leaves_the_node_ready(mixed: Mixed) -> None:
    reply = await status(mixed.ours)
    said = {one.type: one.status for one in reply.status.conditions}
    assert said["RuntimeReady"] and said["NetworkReady"] and said["DelegateReady"]


@pytest.mark.parametrize("kind", ["RuntimeReady", "NetworkReady"])
async def test_an_unready_delegate_has_its_own_condition(mixed: Mixed, kind: str) -> None:
    """If RuntimeReady or NetworkReady is false, the node becomes NotReady, and zones are evicted."""
    for one in mixed.other.status.status.conditions:
        if one.type == kind:
            one.status, one.reason, one.message = False, "NotYet", "cni config uninitialized"
    found = await condition(mixed.ours)
    assert (found.status, found.reason) == (False, f"Delegate{kind}False")
    assert found.message == f"{kind}: NotYet: cni config uninitialized"
    assert (await condition(mixed.ours, kind)).status


@pytest.mark.parametrize("default", Unnamed)
async def test_handlers_of_both_are_listed(short_path: Path, other: OtherRuntime, default: Unnamed) -> None:
    other.status = ready(**{"": False, "runc": False, "xenpod": False})
    async with in_front_of(short_path, other.path, default=default) as ours:
        found = handlers(await status(ours))
        assert found == {"": default is Unnamed.XENPOD, "runc": False, "xenpod": True, "xenpod-zone": True}
        await other.die()
        await becomes_ready(ours, False)
        assert handlers(await status(ours)) == found


async def test_features_hold_for_both_runtimes(mixed: Mixed) -> None:
    assert not (await status(mixed.ours)).features.supplemental_groups_policy
    theirs = cri.RuntimeFeatures(supplemental_groups_policy=True, user_namespaces_host_network=True)
    mixed.other.status.features.CopyFrom(theirs)
    assert (await status(mixed.ours)).features == theirs


async def test_verbose_info_of_both_is_joined(mixed: Mixed) -> None:
    mixed.other.status.info["config"] = '{"its": "own"}'
    reply = await status(mixed.ours, verbose=True)
    assert json.loads(reply.info["delegate.config"]) == {"its": "own"}
    assert "state_dir" in json.loads(reply.info["config"])
    assert json.loads(reply.info["delegate"]) == {"endpoint": f"unix://{mixed.other.path}", "error": ""}


@pytest.mark.parametrize("lie", [b"\x0a\xff", Status(grpc.StatusCode.INTERNAL, "a bug")])
async def test_an_impossible_status_makes_the_delegate_unready(mixed: Mixed, lie: Any) -> None:
    mixed.other.answers["Status"] = lie
    found = await condition(mixed.ours)
    assert not found.status and ("not CRI's" in found.message or "a bug" in found.message)


async def test_the_cgroup_driver_is_the_delegates(mixed: Mixed) -> None:
    """The kubelet makes cgroups for the delegate's pods, and none for zones."""
    answer = cri.RuntimeConfigResponse(linux=cri.LinuxRuntimeConfiguration(cgroup_driver=cri.CGROUPFS))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await mixed.ours.cri.RuntimeConfig(cri.RuntimeConfigRequest())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    mixed.other.answers["RuntimeConfig"] = answer
    assert await mixed.ours.cri.RuntimeConfig(cri.RuntimeConfigRequest()) == answer
    await mixed.other.die()
    assert await mixed.ours.cri.RuntimeConfig(cri.RuntimeConfigRequest()) == answer


async def test_both_learn_the_pods_addresses(mixed: Mixed) -> None:
    network = cri.NetworkConfig(pod_cidr="10.1.0.0/16")
    request = cri.UpdateRuntimeConfigRequest(runtime_config=cri.RuntimeConfig(network_config=network))
    await mixed.ours.cri.UpdateRuntimeConfig(request)
    assert mixed.ours.daemon.pod_cidr.cidr == "10.1.0.0/16"
    assert [seen.request for seen in mixed.other.asked("UpdateRuntimeConfig")] == [
        request.SerializeToString()
    ]
    mixed.other.answers["UpdateRuntimeConfig"] = Status(grpc.StatusCode.INTERNAL, "cannot")
    with pytest.raises(grpc.aio.AioRpcError, match="cannot"):
        await mixed.ours.cri.UpdateRuntimeConfig(request)


@pytest.mark.parametrize(
    ("default", "policy", "handler", "host", "goes"),
    [
        (Unnamed.DELEGATE, HostNetwork.CLASSLESS, "", False, "delegate"),
        (Unnamed.DELEGATE, HostNetwork.CLASSLESS, "", True, "delegate"),
        (Unnamed.DELEGATE, HostNetwork.CLASSLESS, "runc", True, "delegate"),
        (Unnamed.DELEGATE, HostNetwork.CLASSLESS, "xenpod", False, "zone"),
        (Unnamed.DELEGATE, HostNetwork.CLASSLESS, "xenpod", True, "refused"),
        (Unnamed.DELEGATE, HostNetwork.REFUSE, "", True, "delegate"),
        (Unnamed.DELEGATE, HostNetwork.DELEGATE, "xenpod", True, "delegate"),
        (Unnamed.DELEGATE, HostNetwork.DELEGATE, "xenpod", False, "zone"),
        (Unnamed.XENPOD, HostNetwork.CLASSLESS, "", False, "zone"),
        (Unnamed.XENPOD, HostNetwork.CLASSLESS, "", True, "delegate"),
        (Unnamed.XENPOD, HostNetwork.CLASSLESS, "xenpod", True, "refused"),
        (Unnamed.XENPOD, HostNetwork.REFUSE, "", True, "refused"),
        (Unnamed.XENPOD, HostNetwork.REFUSE, "runc", True, "delegate"),
        (Unnamed.XENPOD, HostNetwork.DELEGATE, "xenpod-zone", True, "delegate"),
    ],
)
async def test_each_pod_gets_its_runtime(
    short_path: Path,
    other: OtherRuntime,
    default: Unnamed,
    policy: HostNetwork,
    handler: str,
    host: bool,
    goes: str,
) -> None:
    linux = HOST if host else cri.LinuxPodSandboxConfig()
    async with in_front_of(short_path, other.path, default=default, host_network=policy) as ours:
        if goes == "refused":
            with pytest.raises(grpc.aio.AioRpcError, match="hostNetwork") as caught:
                await ours.pod(handler=handler, linux=linux)
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            return
        pod = await ours.pod(handler=handler, linux=linux)
        assert (pod in other.pods, pod in ours.protect.zones) == (goes == "delegate", goes == "zone")
        if goes == "delegate":
            # The delegate does not know our handlers.
            assert other.pods[pod].runtime_handler == (handler if handler == "runc" else "")


async def test_a_pod_of_the_same_name_on_the_other_side_is_no_conflict(mixed: Mixed) -> None:
    first = await mixed.ours.pod("web", handler="xenpod")
    second = await mixed.ours.pod("web", handler="runc")
    assert await mixed.ours.pods() == [first, second]


async def test_a_xenpod_is_no_delegate(short_path: Path) -> None:
    """The delegate is refused at the start and later, as this xenpod-cri or another one."""
    async with other_runtime(short_path / "x.sock", name="xenpod") as other:
        with pytest.raises(BaseExceptionGroup) as caught:
            async with in_front_of(short_path, other.path):
                raise AssertionError("it serves")
        assert "delegate.endpoint" in repr(caught.value) and "another runtime" in repr(caught.value)
        await other.die()
        async with in_front_of(short_path, other.path) as ours:
            await other.start()

            async def refuses() -> bool:
                return "it is a xenpod-cri" in (await condition(ours)).message

            await until(refuses)
            with pytest.raises(grpc.aio.AioRpcError, match="it is a xenpod-cri") as refused:
                await ours.pod("agent")
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert not other.asked("RunPodSandbox")
            mine = await ours.pod("web", handler="xenpod")
            assert await ours.pods() == [mine]


async def test_a_call_through_a_second_xenpod_is_refused(mixed: Mixed) -> None:
    """A loop through a runtime with another name ends at its second turn."""
    hop = (("xenpod-delegated", "1"),)
    stub = mixed.ours.cri
    calls = [
        stub.RunPodSandbox(
            cri.RunPodSandboxRequest(config=pod_config(), runtime_handler="runc"), metadata=hop
        ),
        stub.ListPodSandbox(cri.ListPodSandboxRequest(), metadata=hop),
        stub.Status(cri.StatusRequest(), metadata=hop),
        stub.StopContainer(cri.StopContainerRequest(container_id="e" * 64), metadata=hop),
    ]
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError, match="passed on by a xenpod-cri already") as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert not mixed.other.asked("RunPodSandbox")
