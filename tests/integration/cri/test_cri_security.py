"""The security context over the real CRI socket: what a container may do, and what it may not."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from tests.support.cri.cri_daemons import CriNode, container_status, needs_node, pulled
from tools.localnode.cri_client import Client
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="module")]

OWN = cri.NamespaceOption(pid=cri.CONTAINER)
SHARED = cri.NamespaceOption(pid=cri.POD)
FOREVER = "exec sleep 1000"


@dataclass
class Stage:
    """A node with an image and one pod, which may have privileged containers."""

    node: CriNode
    client: Client
    image: str
    pod: cri.PodSandboxConfig
    pod_id: str

    async def create(self, script: str = FOREVER, **security: Any) -> str:
        security.setdefault("namespace_options", OWN)
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=f"c-{uuid.uuid4()}"),
            image=cri.ImageSpec(image=self.image),
            command=["sh", "-c", script],
            linux=cri.LinuxContainerConfig(security_context=cri.LinuxContainerSecurityContext(**security)),
        )
        request = cri.CreateContainerRequest(
            pod_sandbox_id=self.pod_id, config=config, sandbox_config=self.pod
        )
        return (await self.client.runtime.CreateContainer(request, timeout=60)).container_id

    async def started(self, script: str = FOREVER, **security: Any) -> str:
        container = await self.create(script, **security)
        await self.client.start(container)
        return container

    async def says(self, container: str, script: str) -> tuple[int, str]:
        """Exit code and both outputs of a script in the container."""
        reply = await self.client.exec(container, "sh", "-c", script)
        return reply.exit_code, (reply.stdout + reply.stderr).decode().strip()

    async def ended(self, container: str) -> cri.ContainerStatus:
        async with asyncio.timeout(60):
            while True:
                status = await container_status(self.client, container)
                if status.state == cri.CONTAINER_EXITED:
                    return status
                await asyncio.sleep(0.02)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    folder = tmp_path_factory.mktemp("security")
    node = CriNode(folder)
    node.configure(handlers={"xenpod": {"host_namespaces": "zone"}})
    await node.start()
    options = cri.NamespaceOption(pid=cri.NODE, ipc=cri.NODE)
    pod = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name="secure", namespace="default", uid="secure"),
        hostname="secure",
        linux=cri.LinuxPodSandboxConfig(
            security_context=cri.LinuxSandboxSecurityContext(privileged=True, namespace_options=options)
        ),
    )
    try:
        async with pulled(node, folder / "registry") as image, node.client() as client:
            request = cri.RunPodSandboxRequest(config=pod)
            reply = await client.runtime.RunPodSandbox(request, timeout=60)
            yield Stage(node, client, image, pod, reply.pod_sandbox_id)
            await client.remove_pod(reply.pod_sandbox_id)
            await node.nothing_left()
    finally:
        await node.close()


def _profile(folder: Path, *names: str) -> cri.SecurityProfile:
    """One of the host that denies system calls."""
    path = folder / "profile.json"
    rule = {"names": list(names), "action": "SCMP_ACT_ERRNO", "errnoRet": 13}
    path.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]}))
    return cri.SecurityProfile(profile_type=cri.SecurityProfile.Localhost, localhost_ref=str(path))


def _add(*names: str) -> cri.Capability:
    return cri.Capability(add_capabilities=names)


async def test_the_default_profile_filters(stage: Stage) -> None:
    container = await stage.started(seccomp=cri.SecurityProfile())
    code, text = await stage.says(container, "grep Seccomp: /proc/self/status /proc/1/status")
    assert code == 0 and text.count(":\t2") == 2
    code, text = await stage.says(container, "unshare -U true")
    assert code != 0 and "not permitted" in text
    work = "mkdir /w && echo hi | tee /w/f | sort >/w/g && chmod 600 /w/f && ln -s f /w/l && cat /w/l"
    assert await stage.says(container, f"{work} && (sleep 0 & wait)") == (0, "hi")


async def test_the_default_profile_follows_the_capabilities(stage: Stage) -> None:
    mount = "mkdir -p /m && mount -t tmpfs none /m && umount /m && echo mounted"
    container = await stage.started(seccomp=cri.SecurityProfile(), capabilities=_add("SYS_ADMIN"))
    assert await stage.says(container, mount) == (0, "mounted")
    code, _ = await stage.says(await stage.started(seccomp=cri.SecurityProfile()), mount)
    assert code != 0


async def test_a_profile_of_the_host(stage: Stage, tmp_path: Path) -> None:
    profile = _profile(tmp_path, "chmod", "fchmodat")
    container = await stage.started("chmod 700 /tmp; exec sleep 1000", seccomp=profile)
    code, text = await stage.says(container, "chmod 400 /etc/passwd")
    assert code != 0 and "Permission denied" in text
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        (tmp_path / "profile.json").write_text("{")
        await stage.create(seccomp=profile)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT and "not JSON" in str(raised.value)


async def test_privileged_has_the_whole_zone(stage: Stage, tmp_path: Path) -> None:
    container = await stage.started(privileged=True, seccomp=_profile(tmp_path, "mount"))
    assert await stage.says(container, "mkdir /m && mount -t tmpfs none /m && echo yes") == (0, "yes")
    code, text = await stage.says(container, "grep -e Seccomp: -e CapBnd /proc/self/status")
    plain = await stage.started(readonly_paths=["/proc/sys"])
    _, less = await stage.says(plain, "grep CapBnd /proc/self/status")
    assert code == 0 and "Seccomp:\t0" in text and less not in text
    assert await stage.says(container, "test -w /proc/sys/kernel/domainname && echo yes") == (0, "yes")
    assert (await stage.says(plain, "echo x >/proc/sys/kernel/domainname"))[0] != 0


async def test_shared_memory_of_the_pod(stage: Stage) -> None:
    one, two = await stage.started(), await stage.started()
    alone = await stage.started(namespace_options=cri.NamespaceOption(pid=cri.CONTAINER, ipc=cri.CONTAINER))
    host = await stage.started(namespace_options=cri.NamespaceOption(pid=cri.CONTAINER, ipc=cri.NODE))
    assert (await stage.says(one, "echo shared >/dev/shm/note"))[0] == 0
    assert await stage.says(two, "cat /dev/shm/note") == (0, "shared")
    assert await stage.says(host, "cat /dev/shm/note") == (0, "shared")
    assert (await stage.says(alone, "ls /dev/shm")) == (0, "")
    places = [(await stage.says(each, "readlink /proc/self/ns/ipc"))[1] for each in (one, two, host, alone)]
    assert places[0] == places[1] == places[2] != places[3]


async def test_processes_of_a_target(stage: Stage) -> None:
    target = await stage.started("sleep 1004 & wait")
    options = cri.NamespaceOption(pid=cri.TARGET, target_id=target)
    debugger = await stage.started(namespace_options=options)
    _, text = await stage.says(debugger, "ps -o pid,args")
    assert "sleep 1004" in text and "sleep 1000" in text
    _, first = await stage.says(debugger, "tr '\\0' ' ' </proc/1/cmdline")
    assert first.startswith("sh -c sleep 1004")
    await stage.client.runtime.StopContainer(cri.StopContainerRequest(container_id=target))
    assert (await stage.ended(debugger)).exit_code == 137
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stage.create(namespace_options=options)
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_processes_of_the_zone(stage: Stage) -> None:
    """HostPID means the zone's processes, as POD does; a target that shares them is joined there."""
    await stage.started("exec sleep 1005", namespace_options=SHARED)
    host = await stage.started(namespace_options=cri.NamespaceOption(pid=cri.NODE))
    debugger = await stage.started(namespace_options=cri.NamespaceOption(pid=cri.TARGET, target_id=host))
    for container in (host, debugger):
        assert "sleep 1005" in (await stage.says(container, "ps -o args"))[1]


async def test_processes_that_fork_end_with_their_container(stage: Stage) -> None:
    """In the shared process namespace, where the kernel does not end them."""
    watcher = await stage.started(namespace_options=SHARED)
    busy = "while :; do (sleep 1006 & :); usleep 1000; done"
    container = await stage.started(f"({busy}) & ({busy}) & usleep 300000; exit 3", namespace_options=SHARED)
    assert (await stage.ended(container)).exit_code == 3
    gone = "while ps -o args | grep -q '[s]leep 1006'; do usleep 10000; done; echo gone"
    assert await stage.says(watcher, gone) == (0, "gone")


async def test_capabilities_of_users(stage: Stage) -> None:
    ambient = cri.Capability(drop_capabilities=["ALL"], add_ambient_capabilities=["NET_BIND_SERVICE"])
    container = await stage.started(run_as_user=cri.Int64Value(value=1000), capabilities=ambient)
    _, text = await stage.says(container, "grep Cap /proc/self/status")
    sets = dict(line.split(":\t") for line in text.splitlines())
    assert {sets[name] for name in ("CapBnd", "CapEff", "CapPrm", "CapAmb")} == {f"{1 << 10:016x}"}
    none = await stage.started(capabilities=cri.Capability(drop_capabilities=["ALL"]))
    assert "CapEff:\t0000000000000000" in (await stage.says(none, "cat /proc/self/status"))[1]


async def test_home_in_a_container_without_passwd(stage: Stage) -> None:
    container = await stage.started()
    assert await stage.says(container, "rm /etc/passwd") == (0, "")
    assert await stage.says(container, "env | grep ^HOME=") == (0, "HOME=/")


async def test_masked_and_readonly_paths(stage: Stage) -> None:
    """A path that is not there is passed over."""
    container = await stage.started(masked_paths=["/proc/uptime", "/x"], readonly_paths=["/etc", "/nowhere"])
    assert await stage.says(container, "cat /proc/uptime") == (0, "")
    code, text = await stage.says(container, "touch /etc/x")
    assert code != 0 and "Read-only" in text
