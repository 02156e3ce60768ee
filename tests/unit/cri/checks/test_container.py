"""Impossible requests: each is refused with its own code and with advice for the next step."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from cri.container.host_files import make_log_directory
from daemonkit.faults import Exhausted
from daemonkit.host.paths import HostPaths
from tests.support.cri.cri_node import Rig, rig
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = pytest.mark.asyncio(loop_scope="module")

INVALID = grpc.StatusCode.INVALID_ARGUMENT
REFUSED = grpc.StatusCode.FAILED_PRECONDITION
UNSUPPORTED = grpc.StatusCode.UNIMPLEMENTED
MISSING = grpc.StatusCode.NOT_FOUND

Meta = cri.PodSandboxMetadata


def _options(**fields: Any) -> cri.LinuxPodSandboxConfig:
    options = cri.NamespaceOption(**fields)
    return cri.LinuxPodSandboxConfig(
        security_context=cri.LinuxSandboxSecurityContext(namespace_options=options)
    )


def _security(**fields: Any) -> cri.LinuxPodSandboxConfig:
    return cri.LinuxPodSandboxConfig(security_context=cri.LinuxSandboxSecurityContext(**fields))


def _users(
    uids: list[tuple[int, int, int]], gids: list[tuple[int, int, int]] | None = None, mode: int = cri.POD
) -> cri.LinuxPodSandboxConfig:
    """Mappings as (container id, host id, length); the same for groups unless given."""
    maps = [
        [cri.IDMapping(container_id=first, host_id=host, length=length) for first, host, length in side]
        for side in (uids, uids if gids is None else gids)
    ]
    return _options(userns_options=cri.UserNamespace(mode=mode, uids=maps[0], gids=maps[1]))  # type: ignore[arg-type]


def _image(**fields: Any) -> cri.Mount:
    values: dict[str, Any] = {
        "container_path": "/i",
        "image": cri.ImageSpec(image="busybox"),
        "readonly": True,
    }
    return cri.Mount(**(values | fields))


def _sysctls(**sysctls: str) -> cri.LinuxPodSandboxConfig:
    return cri.LinuxPodSandboxConfig(sysctls={name.replace("__", "."): v for name, v in sysctls.items()})


LOCALHOST = cri.SecurityProfile(profile_type=cri.SecurityProfile.Localhost, localhost_ref="/nowhere/p.json")
RELATIVE = cri.SecurityProfile(profile_type=cri.SecurityProfile.Localhost, localhost_ref="localhost/p.json")
NAMELESS = cri.SecurityProfile(profile_type=cri.SecurityProfile.Localhost)
UNFIT = cri.SecurityProfile(profile_type=cri.SecurityProfile.Unconfined, localhost_ref="/p.json")

ODD = cri.SecurityProfile(profile_type=7)  # type: ignore[arg-type]

PODS: list[tuple[str, dict[str, Any], grpc.StatusCode, str]] = [
    ("no name", {"metadata": Meta(namespace="n", uid="u")}, INVALID, "metadata.name"),
    ("no metadata", {"metadata": None}, INVALID, "metadata.name"),
    ("a path as name", {"metadata": Meta(name="../../etc")}, INVALID, "metadata.name"),
    ("a CNI argument in the name", {"metadata": Meta(name="a;K8S_POD_NAME=b")}, INVALID, "metadata.name"),
    ("a line break", {"metadata": Meta(name="a", namespace="b\nc")}, INVALID, "metadata.namespace"),
    ("a long name", {"metadata": Meta(name="a" * 254)}, INVALID, "metadata.name"),
    ("an odd uid", {"metadata": Meta(name="a", uid="=")}, INVALID, "metadata.uid"),
    ("an odd host name", {"hostname": "a b"}, INVALID, "hostname"),
    ("a long host name", {"hostname": "a" * 65}, INVALID, "hostname"),
    ("memory in words", {"annotations": {"xenpod.dev/memory": "lots"}}, INVALID, "xenpod.dev/memory"),
    ("negative memory", {"annotations": {"xenpod.dev/memory": "-1Gi"}}, INVALID, "xenpod.dev/memory"),
    ("no memory", {"annotations": {"xenpod.dev/memory": "0"}}, INVALID, "xenpod.dev/memory"),
    ("too much memory", {"annotations": {"xenpod.dev/memory": "9999999Pi"}}, INVALID, "between"),
    ("half a CPU", {"annotations": {"xenpod.dev/vcpus": "1.5"}}, INVALID, "whole number"),
    ("many CPUs", {"annotations": {"xenpod.dev/vcpus": "2000"}}, INVALID, "xenpod.dev/vcpus"),
    ("a misspelt annotation", {"annotations": {"xenpod.dev/memroy": "1Gi"}}, INVALID, "known here"),
    ("bandwidth", {"annotations": {"kubernetes.io/ingress-bandwidth": "x"}}, INVALID, "ingress-bandwidth"),
    ("large annotations", {"annotations": {"a": "x" * (256 * 1024)}}, INVALID, "annotations"),
    ("an empty label", {"labels": {"": "x"}}, INVALID, "labels"),
    ("the host's network", {"linux": _options(network=cri.NODE)}, REFUSED, "another runtime"),
    ("the host's processes", {"linux": _options(pid=cri.NODE)}, REFUSED, "(hostPID), and this node"),
    ("the host's IPC", {"linux": _options(ipc=cri.NODE)}, REFUSED, "(hostIPC), and this node"),
    ("both of the host", {"linux": _options(pid=cri.NODE, ipc=cri.NODE)}, REFUSED,
     "runtime handler xenpod-zone: there it is the zone's)"),
    ("the host's network as the zone's", {"linux": _options(network=cri.NODE), "handler": "xenpod-zone"},
     REFUSED, "hostNetwork"),
    ("a group alone", {"linux": _security(run_as_group=cri.Int64Value(value=5))}, INVALID, "run_as_group"),
    ("a negative user", {"linux": _security(run_as_user=cri.Int64Value(value=-1))}, INVALID,
     "run_as_user -1"),
    ("a group beyond", {"linux": _security(supplemental_groups=[2**32])}, INVALID, "supplemental_groups"),
    ("an odd groups policy", {"linux": _security(supplemental_groups_policy=7)}, INVALID, "policy 7"),
    ("an odd SELinux level", {"linux": _security(selinux_options=cri.SELinuxOption(level="high"))}, INVALID,
     "'high'"),
    ("an AppArmor profile", {"linux": _security(apparmor=LOCALHOST)}, REFUSED, "not loaded"),
    ("an odd seccomp profile type", {"linux": _security(seccomp=ODD)}, INVALID, "seccomp profile type 7"),
    ("a missing seccomp profile", {"linux": _security(seccomp=LOCALHOST)}, REFUSED, "/nowhere/p.json"),
    ("a relative seccomp profile", {"linux": _security(seccomp=RELATIVE)}, INVALID, "absolute"),
    ("an old seccomp profile", {"linux": _security(seccomp_profile_path="localhost//nowhere/x")}, REFUSED,
     "/nowhere/x"),
    ("an odd seccomp profile", {"linux": _security(seccomp_profile_path="mine")}, INVALID, "mine"),
    ("no network mode", {"linux": _options(network=cri.CONTAINER)}, INVALID, "network"),
    ("an odd mode", {"linux": _options(pid=17)}, INVALID, "mode"),
    ("a pod's target", {"linux": _options(pid=cri.TARGET)}, INVALID, "TARGET"),
    ("two mappings", {"linux": _users([(0, 1000, 10), (10, 2000, 10)])}, INVALID, "2 mappings of uids"),
    ("no mapping", {"linux": _users([])}, INVALID, "0 mappings"),
    ("no root in a mapping", {"linux": _users([(1, 1000, 10)])}, INVALID, "do not map 0"),
    ("an empty mapping", {"linux": _users([(0, 1000, 0)])}, INVALID, "map 0 ids"),
    ("a mapping beyond", {"linux": _users([(0, 2**32 - 1, 2)])}, INVALID, "ids from"),
    ("users unlike groups", {"linux": _users([(0, 1, 9)], [(0, 2, 9)])}, INVALID, "differently"),
    ("a container's users", {"linux": _users([(0, 1, 9)], mode=cri.CONTAINER)}, INVALID, "POD nor NODE"),
    ("another's users", {"linux": _users([(0, 1, 9)], mode=cri.TARGET)}, INVALID, "POD nor NODE"),
    ("host users mapped", {"linux": _users([(0, 1, 9)], mode=cri.NODE)}, INVALID, "NODE with"),
    ("a sysctl of the host", {"linux": _sysctls(kernel__panic="1")}, INVALID, "kernel.panic"),
    ("a sysctl as path", {"linux": _sysctls(**{"net/../../x": "1"})}, INVALID, "sysctl"),
    ("a sysctl of two lines", {"linux": _sysctls(net__core__somaxconn="1\n2")}, INVALID, "somaxconn"),
    ("a relative log directory", {"log_directory": "logs"}, INVALID, "log_directory"),
    ("a log directory up", {"log_directory": "/var/log/../../etc"}, INVALID, "log_directory"),
    ("a name server by name", {"dns_config": cri.DNSConfig(servers=["dns.example"])}, INVALID, "servers"),
    ("DNS options of two lines", {"dns_config": cri.DNSConfig(options=["a\nnameserver 6.6.6.6"])}, INVALID,
     "options"),
    ("many DNS searches", {"dns_config": cri.DNSConfig(searches=["a"] * 65)}, INVALID, "more than 64"),
    ("many ports", {"port_mappings": [cri.PortMapping(container_port=80)] * 4097}, INVALID, "more than 4096"),
    ("an odd protocol", {"port_mappings": [cri.PortMapping(container_port=8, protocol=9)]}, INVALID,  # type: ignore[arg-type]
     "protocol 9"),
    ("a port beyond", {"port_mappings": [cri.PortMapping(container_port=80, host_port=70000)]}, INVALID,
     "port"),
    ("a host address", {"port_mappings": [cri.PortMapping(container_port=8, host_port=8, host_ip="x")]},
     INVALID, "host_ip"),
    ("Windows", {"windows": cri.WindowsPodSandboxConfig()}, INVALID, "Linux"),
]  # fmt: skip

Security = cri.LinuxContainerSecurityContext


def _linux(**fields: Any) -> cri.LinuxContainerConfig:
    return cri.LinuxContainerConfig(security_context=Security(**fields))


def _resources(**fields: Any) -> cri.LinuxContainerConfig:
    return cri.LinuxContainerConfig(resources=cri.LinuxContainerResources(**fields))


def _namespaces(**fields: Any) -> cri.LinuxContainerConfig:
    return _linux(namespace_options=cri.NamespaceOption(**fields))


CONTAINERS: list[tuple[str, dict[str, Any], grpc.StatusCode, str]] = [
    ("no name", {"metadata": cri.ContainerMetadata()}, INVALID, "metadata.name"),
    ("a path as name", {"metadata": cri.ContainerMetadata(name="a/b")}, INVALID, "metadata.name"),
    ("no image", {"image": cri.ImageSpec()}, INVALID, "image"),
    ("an unknown image", {"image": cri.ImageSpec(image="nope")}, MISSING, "pull it first"),
    ("an absolute log path", {"log_path": "/etc/passwd"}, INVALID, "log_path"),
    ("a log path up", {"log_path": "../../etc/cron.d/x"}, INVALID, "log_path"),
    ("a mount without a source", {"mounts": [cri.Mount(container_path="/data")]}, INVALID, "/data"),
    ("a device of nothing", {"devices": [cri.Device(container_path="/dev/kvm")]}, INVALID, "on the host"),
    ("a device nowhere", {"devices": [cri.Device(host_path="/dev/sda", container_path="x")]}, INVALID, "'x'"),
    ("odd permissions", {"devices": [cri.Device(host_path="/a", container_path="/a", permissions="x")]},
     INVALID, "'x'"),
    ("an odd device name", {"devices": [cri.Device(host_path="/dev/xenpod/A", container_path="/a")]},
     INVALID, "'A'"),
    ("a device's odd CDI name", {"CDI_devices": [cri.CDIDevice(name="xenpod.dev/device=A")]}, INVALID, "'A'"),
    ("an annotation of pods", {"annotations": {"xenpod.dev/memory": "1Gi"}}, INVALID, "annotate its pod"),
    ("an annotation of nobody", {"annotations": {"xenpod.dev/memroy": "1Gi"}}, INVALID, "xenpod.dev/memroy"),
    ("an image to be written", {"mounts": [_image(readonly=False)]}, INVALID, "readonly"),
    ("an image without a name", {"mounts": [_image(image=cri.ImageSpec())]}, INVALID, "no image"),
    ("an image and a path", {"mounts": [_image(host_path="/srv")]}, INVALID, "host_path"),
    ("an image nowhere", {"mounts": [_image(container_path="x")]}, INVALID, "absolute"),
    ("an image that others see", {"mounts": [_image(propagation=cri.PROPAGATION_BIDIRECTIONAL)]}, REFUSED,
     "mountPropagation Bidirectional: this node runs a pod in a virtual machine"),
    ("a sub path up", {"mounts": [_image(image_sub_path="a/../../b")]}, INVALID, "clean"),
    ("a sub path from the root", {"mounts": [_image(image_sub_path="/etc")]}, INVALID, "relative"),
    ("an image not here", {"mounts": [_image(image=cri.ImageSpec(image="far/x:1"))]}, MISSING, "far/x"),
    ("many images", {"mounts": [_image()] * 33}, INVALID, "32"),
    ("a CDI device", {"CDI_devices": [cri.CDIDevice(name="v.com/gpu=0")]}, REFUSED,
     "CDI device 'v.com/gpu=0': this node runs a pod in a virtual machine"),
    ("an odd CDI device", {"CDI_devices": [cri.CDIDevice(name="gpu0")]}, INVALID, "gpu0"),
    ("privileged in a pod that is not", {"linux": _linux(privileged=True)}, REFUSED, "privileged"),
    ("a host namespace", {"linux": _namespaces(network=cri.NODE)}, REFUSED, "a kernel of its own (leave"),
    ("the host's processes", {"linux": _namespaces(pid=cri.NODE)}, REFUSED, "hostPID"),
    ("the host's IPC", {"linux": _namespaces(ipc=cri.NODE)}, REFUSED, "hostIPC"),
    ("no network mode", {"linux": _namespaces(network=cri.CONTAINER)}, INVALID, "network"),
    ("another's IPC", {"linux": _namespaces(ipc=cri.TARGET)}, INVALID, "TARGET"),
    ("no target", {"linux": _namespaces(pid=cri.TARGET)}, INVALID, "target_id"),
    ("a target for nothing", {"linux": _namespaces(pid=cri.POD, target_id="a")}, INVALID, "target_id"),
    ("an unknown target", {"linux": _namespaces(pid=cri.TARGET, target_id="f" * 64)}, MISSING, "f" * 64),
    ("an odd mode", {"linux": _namespaces(pid=17)}, INVALID, "mode"),
    ("an odd groups policy", {"linux": _linux(supplemental_groups_policy=7)}, INVALID, "policy 7"),
    ("an odd seccomp profile type", {"linux": _linux(seccomp=ODD)}, INVALID, "seccomp profile type 7"),
    ("a missing seccomp profile", {"linux": _linux(seccomp=LOCALHOST)}, REFUSED, "/nowhere/p.json"),
    ("a relative seccomp profile", {"linux": _linux(seccomp=RELATIVE)}, INVALID, "absolute"),
    ("a nameless seccomp profile", {"linux": _linux(seccomp=NAMELESS)}, INVALID, "localhost_ref"),
    ("an unfit seccomp profile", {"linux": _linux(seccomp=UNFIT)}, INVALID, "not Localhost"),
    ("an old seccomp profile", {"linux": _linux(seccomp_profile_path="localhost//nowhere/x")}, REFUSED,
     "/nowhere/x"),
    ("an odd seccomp profile", {"linux": _linux(seccomp_profile_path="mine")}, INVALID, "mine"),
    ("an AppArmor profile", {"linux": _linux(apparmor=LOCALHOST)}, REFUSED, "AppArmor"),
    ("an old AppArmor profile", {"linux": _linux(apparmor_profile="localhost/p")}, REFUSED, "not loaded"),
    ("an odd SELinux level", {"linux": _linux(selinux_options=cri.SELinuxOption(level="s0 c1"))}, INVALID,
     "not of the form"),
    ("an unknown capability", {"linux": _linux(capabilities=cri.Capability(add_capabilities=["FLY"]))},
     INVALID, "FLY"),
    ("an unknown user", {"linux": _linux(run_as_username="nobody-knows")}, INVALID, "nobody-knows"),
    ("a group alone", {"linux": _linux(run_as_group=cri.Int64Value(value=5))}, INVALID, "run_as_group"),
    ("a negative user", {"linux": _linux(run_as_user=cri.Int64Value(value=-1))}, INVALID, "run_as_user"),
    ("a masked path up", {"linux": _linux(masked_paths=["/a/../b"])}, INVALID, "masked_paths"),
    ("a negative memory limit", {"linux": _resources(memory_limit_in_bytes=-5)}, INVALID, "memory"),
    ("negative CPU shares", {"linux": _resources(cpu_shares=-1)}, INVALID, "cpu_shares -1"),
    ("an odd period", {"linux": _resources(cpu_period=5)}, INVALID, "cpu_period"),
    ("a score beyond", {"linux": _resources(oom_score_adj=1001)}, INVALID, "oom_score_adj 1001"),
    ("a score below", {"linux": _resources(oom_score_adj=-1001)}, INVALID, "oom_score_adj -1001"),
    ("an odd stop signal", {"stop_signal": 999}, INVALID, "stop signal 999"),
    ("huge pages", {"linux": _resources(hugepage_limits=[cri.HugepageLimit(page_size="2MB", limit=9)])},
     UNSUPPORTED, "2MB"),
    ("a NUL in an argument", {"command": ["a\0b"]}, INVALID, "NUL"),
    ("a large command", {"command": ["x" * (600 * 1024)]}, INVALID, "larger"),
    ("an odd variable", {"envs": [cri.KeyValue(key="A=B", value=b"c")]}, INVALID, "A=B"),
    ("a variable that is no text", {"envs": [cri.KeyValue(key="A", value=b"\xff")]}, INVALID, "UTF-8"),
    ("a relative directory", {"working_dir": "srv"}, INVALID, "srv"),
    ("Windows", {"windows": cri.WindowsContainerConfig()}, INVALID, "Linux"),
]  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with rig(tmp_path_factory.mktemp("requests")) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pod(node: Rig) -> str:
    return await node.pod("holder", log_directory=str(node.config.state_dir / "logs"))


@pytest.mark.parametrize(("fields", "code", "words"), [row[1:] for row in PODS], ids=[row[0] for row in PODS])
async def test_impossible_pods_are_refused(
    node: Rig, pod: str, fields: dict[str, Any], code: grpc.StatusCode, words: str
) -> None:
    before = list(node.protect.calls)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.pod("bad", **fields)
    assert raised.value.code() is code and words in (raised.value.details() or "")
    assert (raised.value.details() or "").startswith(("run pod sandbox ", "read annotation ", "attach pod "))
    assert node.protect.calls == before and list(node.network.attached) == [pod]
    assert [sandbox.id for sandbox in node.daemon.records.sandboxes.all()] == [pod]


@pytest.mark.parametrize(
    ("fields", "code", "words"), [row[1:] for row in CONTAINERS], ids=[row[0] for row in CONTAINERS]
)
async def test_impossible_containers_are_refused(
    node: Rig, pod: str, fields: dict[str, Any], code: grpc.StatusCode, words: str
) -> None:
    before = list(node.protect.calls)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.container(pod, "bad", **fields)
    assert raised.value.code() is code and words in (raised.value.details() or "")
    assert (raised.value.details() or "").startswith(("create container ", "find "))
    assert (
        node.protect.calls == before and node.daemon.records.containers.all() == [] and not node.images.held
    )


async def test_an_impossible_log_directory_is_refused(node: Rig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.pod("bad", log_directory=str(tmp_path / "file" / "logs"))
    assert raised.value.code() is INVALID


async def test_a_log_directory_on_a_full_disk_is_exhausted() -> None:
    class Full(HostPaths):
        async def make_directory(self, owner: str, path: str) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(Exhausted, match="/logs: No space left"):
        await make_log_directory(Full(Path("/nowhere")), cri.PodSandboxMetadata(), "/logs")


async def test_an_empty_id_is_refused(node: Rig) -> None:
    calls = [
        node.cri.StopPodSandbox(cri.StopPodSandboxRequest()),
        node.cri.RemoveContainer(cri.RemoveContainerRequest()),
        node.cri.StartContainer(cri.StartContainerRequest()),
        node.cri.ContainerStatus(cri.ContainerStatusRequest()),
    ]
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call
        assert raised.value.code() is INVALID
