"""Only pods of the namespaces in ``[delegate] namespaces`` start in the delegate."""

from __future__ import annotations

import logging
from pathlib import Path

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri.delegate.config import DelegateConfig, HostNetwork, Unnamed
from daemonkit.convert import WrongKey
from daemonkit.namespaces import expression, matches
from tests.support.cri.cri_node import Rig
from tests.support.cri.mixed_rig import Mixed, becomes_ready, in_front_of
from tests.support.cri.other_runtime import OtherRuntime
from xenpod_proto.cri.v1 import runtime_pb2 as cri

NODE = cri.LinuxPodSandboxConfig(
    security_context=cri.LinuxSandboxSecurityContext(namespace_options=cri.NamespaceOption(network=cri.NODE))
)
THEIRS = "d".ljust(64, "1")


def of(namespace: str, name: str = "web") -> cri.PodSandboxMetadata:
    return cri.PodSandboxMetadata(name=name, namespace=namespace, uid=f"uid-{name}")


async def refusal(
    ours: Rig, namespace: str, handler: str = "", linux: cri.LinuxPodSandboxConfig = NODE
) -> str:
    """The text of the pod's PERMISSION_DENIED."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ours.pod(handler=handler, metadata=of(namespace), linux=linux)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    return caught.value.details() or ""


@pytest.mark.parametrize(
    ("default", "policy", "handler", "linux"),
    [
        pytest.param(Unnamed.DELEGATE, HostNetwork.CLASSLESS, "", None, id="no class"),
        pytest.param(Unnamed.DELEGATE, HostNetwork.REFUSE, "", NODE, id="no class, the host's network"),
        pytest.param(Unnamed.XENPOD, HostNetwork.CLASSLESS, "", NODE, id="only for the host's network"),
        pytest.param(Unnamed.XENPOD, HostNetwork.CLASSLESS, "runc", None, id="a class of the delegate"),
        pytest.param(Unnamed.XENPOD, HostNetwork.DELEGATE, "xenpod", NODE, id="our class, host network"),
    ],
)  # fmt: skip
async def test_a_tenants_pod_for_the_delegate_is_refused_on_every_way(
    short_path: Path,
    other: OtherRuntime,
    default: Unnamed,
    policy: HostNetwork,
    handler: str,
    linux: cri.LinuxPodSandboxConfig | None,
) -> None:
    """With the default, kube-system alone."""
    asked = linux or cri.LinuxPodSandboxConfig()
    namespaces = DelegateConfig().namespaces
    async with in_front_of(
        short_path, other.path, default=default, host_network=policy, namespaces=namespaces
    ) as ours:
        said = await refusal(ours, "tenant", handler, asked)
        assert "[delegate] namespaces in cri.toml does not name its namespace 'tenant'" in said
        assert not other.asked("RunPodSandbox") and not other.pods
        allowed = await ours.pod("proxy", handler, metadata=of("kube-system"), linux=asked)
        assert allowed in other.pods


async def test_pods_of_zones_are_of_any_namespace(short_path: Path, other: OtherRuntime) -> None:
    async with in_front_of(short_path, other.path, namespaces=()) as ours:
        pod = await ours.pod(handler="xenpod", metadata=of("tenant"))
        assert pod in ours.protect.zones
        assert "'kube-system'" in await refusal(ours, "kube-system")


async def test_a_running_pod_continues_and_restarts_its_containers(
    short_path: Path, other: OtherRuntime
) -> None:
    """After an upgrade the pod's namespace is not in the list."""
    other.has_pod(THEIRS)  # of the namespace default
    async with in_front_of(short_path, other.path, namespaces=("kube-system",)) as ours:
        await becomes_ready(ours)
        first = await ours.started(THEIRS)
        await ours.cri.RemoveContainer(cri.RemoveContainerRequest(container_id=first))
        second = await ours.started(THEIRS)
        assert await ours.containers() == [second]
        await refusal(ours, "default")


async def test_namespaces_of_pods_without_a_restart_are_logged_once(
    short_path: Path, other: OtherRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    other.has_pod(THEIRS)
    other.has_pod("d".ljust(64, "2"), state=cri.SANDBOX_NOTREADY).metadata.namespace = "gone"
    other.has_pod("d".ljust(64, "3")).metadata.namespace = "kube-system"
    with caplog.at_level(logging.WARNING, "cri.delegate"):
        async with in_front_of(short_path, other.path, namespaces=("kube-system",)) as ours:
            await becomes_ready(ours)
            await other.die()
            await becomes_ready(ours, ready=False)
            await other.start()
            await becomes_ready(ours)
    (said,) = [one for one in caplog.records if "[delegate] namespaces" in one.getMessage()]
    assert vars(said)["xenpod_fields"]["namespaces"] == "default"


async def test_labels_and_annotations_open_nothing(mixed: Mixed) -> None:
    """A tenant writes the annotations; the API server decides about the namespace."""
    spoof = {"io.kubernetes.pod.namespace": "kube-system", "kubernetes.io/config.source": "file"}
    with pytest.raises(grpc.aio.AioRpcError, match="'tenant'"):
        await mixed.ours.pod(metadata=of("tenant"), labels=spoof, annotations=spoof)


def test_patterns_name_whole_namespaces() -> None:
    names = ("kube-system", "calico-*")
    assert all(matches(names, one) for one in ("kube-system", "calico-system", "calico-"))
    others = ("", "kube-system2", "my-kube-system", "calico", "x-calico-system", "kube-system\n", "calico-A")
    assert not any(matches(names, one) for one in others)
    assert matches(("*",), "anything") and not matches((), "anything") and not matches((), "")


@given(st.text(max_size=70))
def test_a_callers_name_matches_whole_patterns_only(untrusted: str) -> None:
    assert matches(("kube-system",), untrusted) == (untrusted == "kube-system")


@pytest.mark.parametrize("pattern", ["", "Kube", "a.b", "a|b", "(a)", "-a", "a-", "a" * 64, "a\n", "[ab]"])
def test_an_impossible_pattern_of_namespaces_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="is no pattern of namespaces"):
        expression([pattern])
    with pytest.raises(WrongKey, match="namespaces"):
        DelegateConfig(namespaces=(pattern,))
