"""Security settings of ordinary pods, and their dependence on the host and the handler."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest

from cri.cni import pod
from cri.config import HandlerConfig, HostNamespaces
from cri.state.attachment import BandwidthLimits, Chain, Plugin
from daemonkit.faults import Denied, Invalid, Refused
from tests.support.cri.cri_node import Rig, node_config, pod_config, rig
from xenpod_proto.cri.v1 import runtime_pb2 as cri

LABEL = cri.SELinuxOption(user="system_u", role="system_r", type="container_t", level="s0:c123,c456")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


def _pod(security: cri.LinuxSandboxSecurityContext) -> cri.LinuxPodSandboxConfig:
    return cri.LinuxPodSandboxConfig(security_context=security)


def _container(security: cri.LinuxContainerSecurityContext) -> cri.LinuxContainerConfig:
    return cri.LinuxContainerConfig(security_context=security)


async def test_security_context_of_an_ordinary_pod_is_accepted_for_its_sandbox(
    node: Rig, tmp_path: Path
) -> None:
    """The context is about a pause container, and zones have none; a Localhost profile must exist."""
    (tmp_path / "p.json").write_text("{}")
    local = cri.SecurityProfile(
        profile_type=cri.SecurityProfile.Localhost, localhost_ref=str(tmp_path / "p.json")
    )
    for number, profile in enumerate((cri.SecurityProfile(), local)):
        security = cri.LinuxSandboxSecurityContext(
            run_as_user=cri.Int64Value(value=1000),
            run_as_group=cri.Int64Value(value=1000),
            supplemental_groups=[2000, 3000],
            supplemental_groups_policy=cri.SupplementalGroupsPolicy.Strict,
            readonly_rootfs=True,
            seccomp=profile,
            apparmor=cri.SecurityProfile(),
            selinux_options=LABEL,
        )
        assert await node.pod(f"p{number}", linux=_pod(security))


async def test_labels_are_refused_where_zones_would_need_them(node: Rig) -> None:
    plain = await node.pod("plain")
    labelled = _container(cri.LinuxContainerSecurityContext(selinux_options=LABEL))
    await node.container(plain, "before", linux=labelled)
    node.protect.selinux = True
    await node.cri.Status(cri.StatusRequest(verbose=True))
    for attempt in (
        node.pod("labelled", linux=_pod(cri.LinuxSandboxSecurityContext(selinux_options=LABEL))),
        node.container(plain, linux=labelled),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await attempt
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "leave out seLinuxOptions" in (raised.value.details() or "")
    await node.container(plain, "unlabelled")


async def test_an_existing_pod_keeps_the_meaning_of_its_namespaces(tmp_path: Path) -> None:
    """The handler counts when the pod is made, for all of its containers, also under the next daemon."""
    options = cri.NamespaceOption(pid=cri.NODE, ipc=cri.NODE)
    linux = _container(cri.LinuxContainerSecurityContext(namespace_options=options))
    config = node_config(tmp_path)
    zone = replace(config, handlers={"fast": HandlerConfig(host_namespaces=HostNamespaces.ZONE)})
    async with rig(tmp_path, config=zone) as before:
        shared = _pod(cri.LinuxSandboxSecurityContext(namespace_options=options))
        made = await before.pod("made", handler="fast", linux=shared)
    async with rig(tmp_path, before.protect, before.network, before.images, config=config) as after:
        assert await after.container(made, linux=linux)
        plain = await after.pod("plain")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await after.container(plain, linux=linux)
        assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("capable", [False, True])
def test_bandwidth_without_a_plugin_is_ignored_with_a_warning(
    caplog: pytest.LogCaptureFixture, capable: bool
) -> None:
    plugin = Plugin("x", {"type": "x"}, frozenset({"bandwidth"} if capable else ()))
    chain = Chain("pods", "1.0.0", (plugin,), "10-pods.conflist")
    limited = pod_config("web", annotations={"kubernetes.io/egress-bandwidth": "1M"})
    with caplog.at_level(logging.WARNING):
        made = pod.attachment("s", limited, chain, Path("/n"))
        pod.attachment("s", pod_config("free"), chain, Path("/n"))
    assert made.runtime_config["bandwidth"] == {"egressRate": 10**6, "egressBurst": 2**21}
    said = [vars(record)["xenpod_fields"] for record in caplog.records]
    fields = {"pod": "default/web", "sandbox": "s", "network": "pods", "source": "10-pods.conflist"}
    assert said == ([] if capable else [fields])


@pytest.mark.parametrize(
    ("rate", "expected"), [(1, 2**21), (10**8, 10**7), (10**10, 10**9), (10**12, 2**31 - 1)]
)
def test_a_burst_is_some_of_the_rate(rate: int, expected: int) -> None:
    assert pod.burst(rate) == expected


def test_bandwidth_above_the_handlers_limit_is_denied() -> None:
    chain = Chain(
        "pods", "1.0.0", (Plugin("x", {"type": "x"}, frozenset({"bandwidth"})),), "10-pods.conflist"
    )
    most = BandwidthLimits("slow", ingress=10**8)
    key = "kubernetes.io/ingress-bandwidth"

    def given(rate: str) -> object:
        config = pod_config("web", annotations={key: rate} if rate else {})
        return pod.attachment("s", config, chain, Path("/n"), most).runtime_config["bandwidth"]

    assert given("") == given("100M") == {"ingressRate": 10**8, "ingressBurst": 10**7}
    assert given("40M") == {"ingressRate": 4 * 10**7, "ingressBurst": 4 * 10**6}
    with pytest.raises(Denied, match=f"{key}.*handlers.slow.ingress_bandwidth"):
        given("101M")
    plain = Chain("pods", "1.0.0", (), "10-pods.conflist")
    with pytest.raises(Refused, match="handlers.slow.ingress_bandwidth.*add the bandwidth plugin"):
        pod.attachment("s", pod_config("web"), plain, Path("/n"), most)


def test_a_malformed_bandwidth_stays_an_error() -> None:
    with pytest.raises(Invalid, match="egress-bandwidth"):
        chain = Chain("pods", "1.0.0", (), "10-pods.conflist")
        noted = pod_config("web", annotations={"kubernetes.io/egress-bandwidth": "fast"})
        pod.attachment("s", noted, chain, Path("/n"))
