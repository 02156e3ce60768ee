"""Changes of resources, the pod CIDR, and the verbose Status."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from cri.cni import template
from cri.cni.conf import ConfDir
from daemonkit.convert import WrongKey
from daemonkit.faults import Broken, Invalid, Refused
from tests.support.cri.cri_node import CHAIN, Rig, node_config, rig
from tests.support.waiting import until
from xenpod_proto.cri.v1 import runtime_pb2 as cri

MIB = 1 << 20
LIMITS = cri.LinuxContainerResources(cpu_shares=512, memory_limit_in_bytes=64 * MIB)
HUGE = cri.HugepageLimit(page_size="2MB", limit=1)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


async def update(node: Rig, container: str, **fields: Any) -> None:
    linux = cri.LinuxContainerResources(**fields)
    request = cri.UpdateContainerResourcesRequest(container_id=container, linux=linux)
    await node.cri.UpdateContainerResources(request)


async def resize(node: Rig, pod: str, **fields: Any) -> None:
    resources = cri.LinuxContainerResources(**fields)
    request = cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id=pod, resources=resources)
    await node.cri.UpdatePodSandboxResources(request)


async def limited(node: Rig) -> str:
    pod = await node.pod()
    return await node.started(pod, linux=cri.LinuxContainerConfig(resources=LIMITS))


async def test_status_shows_changed_and_unchanged_limits(node: Rig) -> None:
    container = await limited(node)
    await update(node, container, memory_limit_in_bytes=128 * MIB, cpu_quota=50_000, cpu_period=100_000)
    (sent,) = node.protect.updates
    assert json.loads(sent.resources) == {
        "cpu": {"quota": 50_000, "period": 100_000},
        "memory": {"limit": 128 * MIB},
    }
    shown = (await node.status(container)).resources.linux
    assert (shown.memory_limit_in_bytes, shown.cpu_quota, shown.cpu_shares) == (128 * MIB, 50_000, 512)


async def test_the_swap_limit_follows_the_memory_limit(node: Rig) -> None:
    resources = cri.LinuxContainerResources(
        memory_limit_in_bytes=64 * MIB, memory_swap_limit_in_bytes=80 * MIB
    )
    container = await node.started(await node.pod(), linux=cri.LinuxContainerConfig(resources=resources))
    await update(node, container, memory_limit_in_bytes=128 * MIB)
    shown = (await node.status(container)).resources.linux
    assert shown.memory_swap_limit_in_bytes == 144 * MIB
    await update(node, container, memory_limit_in_bytes=32 * MIB, memory_swap_limit_in_bytes=32 * MIB)
    assert json.loads(node.protect.updates[-1].resources)["memory"] == {"limit": 32 * MIB, "swap": 32 * MIB}
    await update(node, container, memory_limit_in_bytes=16 * MIB, memory_swap_limit_in_bytes=64 * MIB)
    await update(node, container, memory_limit_in_bytes=2**63 - 1)
    assert json.loads(node.protect.updates[-1].resources)["memory"]["swap"] == 2**63 - 1


async def test_quota_and_period_are_changed_together(node: Rig) -> None:
    container = await limited(node)
    for asked, sent in (
        ({"cpu_quota": -1, "cpu_period": 50_000}, {"period": 50_000}),  # no quota to be lifted
        ({"cpu_quota": 20_000}, {"quota": 20_000, "period": 50_000}),
        ({"cpu_period": 80_000}, {"quota": 20_000, "period": 80_000}),
        ({"cpu_quota": -1}, {"quota": -1, "period": 80_000}),
        ({"cpu_quota": 30_000}, {"quota": 30_000, "period": 80_000}),
    ):
        await update(node, container, **asked)
        assert json.loads(node.protect.updates[-1].resources) == {"cpu": sent}
    assert (await node.status(container)).resources.linux.cpu_quota == 30_000


async def test_a_limit_is_lifted_with_the_kernels_own_period(node: Rig) -> None:
    container = await limited(node)
    await update(node, container, cpu_quota=20_000)
    await update(node, container, cpu_quota=-1)
    assert json.loads(node.protect.updates[-1].resources) == {"cpu": {"quota": -1, "period": 100_000}}


async def test_the_score_in_the_kubelets_update_stays(node: Rig) -> None:
    """In-place resize of a burstable pod: its score follows from its request."""
    container = await limited(node)
    await update(node, container, memory_limit_in_bytes=128 * MIB, oom_score_adj=900)
    assert json.loads(node.protect.updates[-1].resources) == {"memory": {"limit": 128 * MIB}}
    assert (await node.status(container)).resources.linux.oom_score_adj == LIMITS.oom_score_adj


async def test_the_change_outlives_the_daemon(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        container = await limited(node)
        await update(node, container, cpu_shares=77)
    async with rig(tmp_path, node.protect, node.network, node.images) as node:
        assert (await node.status(container)).resources.linux.cpu_shares == 77


async def test_an_update_of_nothing_asks_nobody(node: Rig) -> None:
    container = await limited(node)
    await update(node, container)
    assert node.protect.updates == []


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"hugepage_limits": [HUGE]}, grpc.StatusCode.UNIMPLEMENTED),
        ({"cpu_period": 1}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"memory_limit_in_bytes": -5}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_unsupported_update_is_refused_and_changes_nothing(
    node: Rig, fields: dict[str, Any], code: grpc.StatusCode
) -> None:
    container = await limited(node)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await update(node, container, **fields)
    assert raised.value.code() is code and "update container" in (raised.value.details() or "")
    assert (await node.status(container)).resources.linux == LIMITS


async def test_update_refused_by_the_zone_is_not_shown(node: Rig) -> None:
    container = await limited(node)
    node.protect.failures["UpdateWorkload"] = Refused("update", container, "memory is in use")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await update(node, container, memory_limit_in_bytes=MIB)
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "memory is in use" in (raised.value.details() or "")
    assert (await node.status(container)).resources.linux == LIMITS


async def test_limits_beside_a_refused_limit_are_shown(node: Rig) -> None:
    """The OCI runtime writes limits in order: limits before the refused limit hold."""
    container = await limited(node)
    node.protect.refused_limit = "cpus"
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await update(node, container, memory_limit_in_bytes=MIB, cpu_shares=99, cpuset_cpus="7")
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "writing cpus" in (raised.value.details() or "")
    assert [json.loads(sent.resources) for sent in node.protect.updates] == [
        {"memory": {"limit": MIB}}, {"cpu": {"shares": 99}},
    ]  # fmt: skip
    shown = (await node.status(container)).resources.linux
    assert shown == cri.LinuxContainerResources(cpu_shares=99, memory_limit_in_bytes=MIB)


async def test_impossible_updates_of_containers_are_refused(node: Rig) -> None:
    container = await limited(node)
    await node.protect.exit(container, 0, "Completed")
    for wanted, code in (
        (container, grpc.StatusCode.FAILED_PRECONDITION),
        ("nobody", grpc.StatusCode.NOT_FOUND),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await update(node, wanted, cpu_shares=100)
        assert raised.value.code() is code


async def test_a_created_container_is_updated(node: Rig) -> None:
    container = await node.container(await node.pod())
    await update(node, container, cpu_shares=100)
    assert (await node.status(container)).resources.linux.cpu_shares == 100


async def test_a_pods_size_goes_to_protectd(node: Rig) -> None:
    pod = await node.pod()
    await resize(node, pod, memory_limit_in_bytes=256 * MIB, cpu_quota=150_000, cpu_period=100_000)
    (sent,) = node.protect.resizes
    overhead = node.config.zone.memory_overhead
    assert (sent.resources.memory_bytes, sent.resources.vcpus) == (256 * MIB + overhead, 2)
    assert node.daemon.records.sandboxes.get(pod).config.linux.resources.memory_limit_in_bytes == 256 * MIB


async def test_parts_of_a_failed_resize_are_reported(node: Rig) -> None:
    pod = await node.pod()
    node.protect.not_done = ["memory: too much", "vCPUs: too many"]
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await resize(node, pod, memory_limit_in_bytes=MIB)
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "memory: too much; vCPUs: too many" in (raised.value.details() or "")
    assert node.daemon.records.sandboxes.get(pod).config.linux.resources.memory_limit_in_bytes == 0


@pytest.mark.parametrize("end", ["stopped", "dead"])
async def test_a_pod_without_a_zone_is_not_resized(node: Rig, end: str) -> None:
    pod = await node.pod()
    if end == "stopped":
        await node.cri.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod))
    else:
        await node.protect.crash_zone(pod, "crash")
        await until(lambda: node.daemon.records.sandboxes.get(pod).death_reason != "")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await resize(node, pod, memory_limit_in_bytes=MIB)
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert f"it is {end}" in (raised.value.details() or "")
    assert not node.protect.resizes
    assert node.daemon.records.sandboxes.get(pod).config.linux.resources.memory_limit_in_bytes == 0


# -- the pod CIDR


async def tell(node: Rig, cidr: str) -> None:
    config = cri.RuntimeConfig(network_config=cri.NetworkConfig(pod_cidr=cidr))
    await node.cri.UpdateRuntimeConfig(cri.UpdateRuntimeConfigRequest(runtime_config=config))


async def test_the_pod_cidr_is_remembered(node: Rig) -> None:
    await tell(node, "10.1.0.0/24,fd00::/64")
    reply = await node.cri.Status(cri.StatusRequest(verbose=True))
    assert json.loads(reply.info["cni"])["podCIDR"] == "10.1.0.0/24,fd00::/64"
    await tell(node, "")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await tell(node, "10.1.0.0/99")
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


TEMPLATE = """{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "ipam":
{"type": "host-local", "ranges": $POD_CIDR_RANGES, "routes": $ROUTES}}], "first": "$POD_CIDR"}"""


async def test_a_template_becomes_a_configuration(tmp_path: Path) -> None:
    source, directory = tmp_path / "template", tmp_path / "net.d"
    source.write_text(TEMPLATE)
    path = await template.write_conflist(source, directory, template.networks("10.1.0.0/24, fd00::/64"))
    made = json.loads(path.read_text())
    assert made["plugins"][0]["ipam"]["ranges"] == [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]
    assert made["plugins"][0]["ipam"]["routes"] == [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
    assert made["first"] == "10.1.0.0/24"
    assert ConfDir(directory).load().name == "pods" and [one.name for one in directory.iterdir()] == [
        path.name
    ]


@pytest.mark.parametrize("text", ["{}", "$NOTHING", "$", '{"cniVersion": "$POD_CIDR"}'])
async def test_malformed_templates_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "template").write_text(text)
    with pytest.raises(Refused):
        await template.write_conflist(
            tmp_path / "template", tmp_path / "net.d", template.networks("10.1.0.0/24")
        )
    with pytest.raises(WrongKey, match="is not a template"):
        template.check_template("cni.conf_template", tmp_path / "template")
    assert not (tmp_path / "net.d").exists()


async def test_unreadable_and_unwritable_templates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused):
        await template.write_conflist(tmp_path / "nothing", tmp_path, template.networks("10.1.0.0/24"))
    (tmp_path / "template").write_text(TEMPLATE)
    (tmp_path / "file").touch()
    with pytest.raises(Broken):
        await template.write_conflist(
            tmp_path / "template", tmp_path / "file", template.networks("10.1.0.0/24")
        )
    with pytest.raises(Invalid):
        template.networks("10.1.0.0/24,")


async def test_the_template_waits_for_its_turn(tmp_path: Path) -> None:
    source = tmp_path / "template"
    source.write_text(TEMPLATE)
    config = node_config(tmp_path)
    config = replace(config, cni=replace(config.cni, conf_template=source))
    async with rig(tmp_path, config=config) as node:
        await tell(node, "10.1.0.0/24")  # the network exists: nothing to do
        assert not config.cni.conf_dir.exists() and node.network.check() == CHAIN
        node.network.trouble = Refused("load", "network", "there is none")
        await tell(node, "10.1.0.0/24")
        assert (config.cni.conf_dir / template.NAME).exists()


# -- Status


async def test_status_asks_protectd_once(node: Rig) -> None:
    before = node.protect.calls.count("Info")
    for _ in range(5):
        await node.cri.Status(cri.StatusRequest())
    assert node.protect.calls.count("Info") - before <= 1
    await node.cri.Status(cri.StatusRequest(verbose=True))
    assert node.protect.calls.count("Info") - before == 2


async def test_verbose_status_has_handlers_and_errors(node: Rig) -> None:
    reply = await node.cri.Status(cri.StatusRequest(verbose=True))
    info = {key: json.loads(text) for key, text in reply.info.items()}
    assert info["handlers"]["xenpod"]["features"] == {
        "recursiveReadOnlyMounts": reply.runtime_handlers[0].features.recursive_read_only_mounts,
        "userNamespaces": reply.runtime_handlers[0].features.user_namespaces,
    }
    assert info["handlers"]["xenpod-gpu"]["error"] == "protectd has no profile 'gpu' (there are: default)"
    assert info["versions"]["protectd"] == "0" and info["versions"]["xenpod-cri"]
    assert info["config"]["state_dir"] == str(node.config.state_dir)
    assert info["cni"]["network"] == "test" and info["toolstack"]["name"] == "fake"


async def test_lists_and_statuses_ask_nobody(node: Rig) -> None:
    container = await limited(node)
    calls = list(node.protect.calls)
    await node.pods()
    await node.containers()
    await node.status(container)
    await node.pod_status(await_pod := (await node.pods())[0])
    assert await_pod and node.protect.calls == calls
