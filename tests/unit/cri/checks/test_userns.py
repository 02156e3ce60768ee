"""User namespaces, from CRI's request to protectd and the OCI runtime."""

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
from xenpod_proto.protect.v1 import protect_pb2 as pb

IDS = (cri.IDMapping(container_id=0, host_id=65536, length=65536),)
OTHERS = (cri.IDMapping(container_id=0, host_id=131072, length=65536),)
NONE = cri.NamespaceOption()
NODE = cri.NamespaceOption(userns_options=cri.UserNamespace(mode=cri.NODE))


def _options(ids: tuple[cri.IDMapping, ...] = IDS, **modes: Any) -> cri.NamespaceOption:
    return cri.NamespaceOption(userns_options=cri.UserNamespace(mode=cri.POD, uids=ids, gids=ids), **modes)


def _pod(options: cri.NamespaceOption) -> cri.LinuxPodSandboxConfig:
    return cri.LinuxPodSandboxConfig(
        security_context=cri.LinuxSandboxSecurityContext(namespace_options=options)
    )


def _container(options: cri.NamespaceOption) -> cri.LinuxContainerConfig:
    return cri.LinuxContainerConfig(
        security_context=cri.LinuxContainerSecurityContext(namespace_options=options)
    )


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


async def test_the_zone_makes_the_user_namespace_and_containers_join(node: Rig) -> None:
    pod = await node.pod(linux=_pod(_options()))
    assert node.protect.zone_requests[pod].id_mapping == pb.IdMapping(host_id=65536, length=65536)
    status = await node.pod_status(pod)
    assert status.linux.namespaces.options.userns_options.mode == cri.POD
    container = await node.container(pod, linux=_container(_options(pid=cri.CONTAINER)))
    oci = json.loads(node.protect.requests[container].oci_config)
    assert {"type": "user", "path": "/run/xenpod/ns/user"} in oci["linux"]["namespaces"]
    mapping = [{"containerID": 0, "hostID": 65536, "size": 65536}]
    assert oci["linux"]["uidMappings"] == oci["linux"]["gidMappings"] == mapping
    (proc,) = (mount for mount in oci["mounts"] if mount["destination"] == "/proc")
    assert proc["type"] == "proc"


async def test_processes_of_the_zone_are_shown_by_its_own_mount(node: Rig) -> None:
    pod = await node.pod(linux=_pod(_options()))
    container = await node.container(pod, linux=_container(_options(pid=cri.POD)))
    mounts = json.loads(node.protect.requests[container].oci_config)["mounts"]
    (proc,) = (mount for mount in mounts if mount["destination"] == "/proc")
    assert (proc["type"], proc["source"]) == ("bind", "/proc")


@pytest.mark.parametrize("options", [NONE, NODE])
async def test_pod_without_a_user_namespace_has_no_id_mapping(
    node: Rig, options: cri.NamespaceOption
) -> None:
    """The same with and without the option."""
    pod = await node.pod(linux=_pod(options))
    assert not node.protect.zone_requests[pod].HasField("id_mapping")
    container = await node.container(pod, linux=_container(NODE if options is NONE else NONE))
    linux = json.loads(node.protect.requests[container].oci_config)["linux"]
    assert "uidMappings" not in linux and "user" not in [space["type"] for space in linux["namespaces"]]


@pytest.mark.parametrize(
    ("pod_options", "container_options"),
    [(_options(), NONE), (_options(), NODE), (NONE, _options()), (_options(), _options(OTHERS))],
)
async def test_a_container_has_its_pod_s(
    node: Rig, pod_options: cri.NamespaceOption, container_options: cri.NamespaceOption
) -> None:
    pod = await node.pod(linux=_pod(pod_options))
    with pytest.raises(grpc.aio.AioRpcError, match="not that of its pod") as raised:
        await node.container(pod, linux=_container(container_options))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not node.protect.requests and not node.images.held


async def test_volumes_are_mapped_when_they_are_to_be(node: Rig) -> None:
    pod = await node.pod(linux=_pod(_options()))
    mounts = [
        cri.Mount(host_path="/srv/a", container_path="/a", uidMappings=IDS, gidMappings=IDS),
        cri.Mount(host_path="/srv/b", container_path="/b"),
    ]
    container = await node.container(pod, linux=_container(_options()), mounts=mounts)
    assert [volume.map_ids for volume in node.protect.requests[container].volumes] == [True, False]


async def test_a_kernel_without_user_namespaces_is_reported(node: Rig) -> None:
    """User namespaces are not advertised, and refused before any work."""
    status = await node.cri.Status(cri.StatusRequest())
    assert all(handler.features.user_namespaces for handler in status.runtime_handlers)
    node.protect.user_namespaces = False
    status = await node.cri.Status(cri.StatusRequest(verbose=True))
    assert not any(handler.features.user_namespaces for handler in status.runtime_handlers)
    with pytest.raises(grpc.aio.AioRpcError, match="kernel of zones has no user namespaces") as raised:
        await node.pod(linux=_pod(_options()))
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert not node.protect.zone_requests and not node.network.attached


@pytest.mark.parametrize("ids", [{"run_as_user": 65536}, {"run_as_group": 65536}, {"groups": [65536]}])
async def test_an_id_outside_the_namespace_is_refused(node: Rig, ids: dict[str, Any]) -> None:
    pod = await node.pod(linux=_pod(_options()))
    security = cri.LinuxContainerSecurityContext(
        namespace_options=_options(),
        run_as_user=cri.Int64Value(value=ids.get("run_as_user", 65535)),
        run_as_group=cri.Int64Value(value=ids.get("run_as_group", 65535)),
        supplemental_groups=ids.get("groups", [65535]),
    )
    linux = cri.LinuxContainerConfig(security_context=security)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.container(pod, linux=linux)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "id 65536 is not in its pod's user namespace, which has ids 0 to 65535" in str(
        raised.value.details()
    )
