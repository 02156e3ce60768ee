"""The security context over the real CRI socket: rights of a container."""

from __future__ import annotations

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

from tests.support.cri.cri_daemons import needs_node
from tests.support.cri.stage import Stage, StageSettings
from tools.localnode.cri_client import Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="module")]

OWN = cri.NamespaceOption(pid=cri.CONTAINER)
SHARED = cri.NamespaceOption(pid=cri.POD)
FOREVER = "exec sleep 1000"


@dataclass
class Secured:
    """A pod with permission for privileged containers."""

    stage: Stage
    pod: Pod

    async def create(self, script: str = FOREVER, **security: Any) -> str:
        """Create a container with this security context."""
        security.setdefault("namespace_options", OWN)
        context = cri.LinuxContainerSecurityContext(**security)
        linux = cri.LinuxContainerConfig(security_context=context)
        return await self.stage.create(self.pod, script, f"c-{uuid.uuid4()}", linux=linux, log_path="")

    async def started(self, script: str = FOREVER, **security: Any) -> str:
        """``create`` and StartContainer."""
        container = await self.create(script, **security)
        await self.stage.client.start(container)
        return container

    async def says(self, container: str, script: str) -> tuple[int, str]:
        """Exit code and both outputs of a script in the container."""
        return await self.stage.says(container, script)


@pytest.fixture(scope="module")
def stage_settings() -> StageSettings:
    return StageSettings({"handlers": {"xenpod": {"host_namespaces": "zone"}}})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def secured(module_stage: Stage) -> AsyncIterator[Secured]:
    options = cri.NamespaceOption(pid=cri.NODE, ipc=cri.NODE)
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name="secure", namespace="default", uid="secure"),
        hostname="secure",
        linux=cri.LinuxPodSandboxConfig(
            security_context=cri.LinuxSandboxSecurityContext(privileged=True, namespace_options=options)
        ),
    )
    reply = await module_stage.runtime.RunPodSandbox(cri.RunPodSandboxRequest(config=config), timeout=60)
    yield Secured(module_stage, Pod(reply.pod_sandbox_id, config))
    await module_stage.tidy()


def _profile(folder: Path, *names: str) -> cri.SecurityProfile:
    """A profile on the host that denies system calls."""
    path = folder / "profile.json"
    rule = {"names": list(names), "action": "SCMP_ACT_ERRNO", "errnoRet": 13}
    path.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]}))
    return cri.SecurityProfile(profile_type=cri.SecurityProfile.Localhost, localhost_ref=str(path))


def _add(*names: str) -> cri.Capability:
    return cri.Capability(add_capabilities=names)


async def test_the_default_profile_filters(secured: Secured) -> None:
    container = await secured.started(seccomp=cri.SecurityProfile())
    code, text = await secured.says(container, "grep Seccomp: /proc/self/status /proc/1/status")
    assert code == 0 and text.count(":\t2") == 2
    code, text = await secured.says(container, "unshare -U true")
    assert code != 0 and "not permitted" in text
    work = "mkdir /w && echo hi | tee /w/f | sort >/w/g && chmod 600 /w/f && ln -s f /w/l && cat /w/l"
    assert await secured.says(container, f"{work} && (sleep 0 & wait)") == (0, "hi")


async def test_the_default_profile_follows_the_capabilities(secured: Secured) -> None:
    mount = "mkdir -p /m && mount -t tmpfs none /m && umount /m && echo mounted"
    container = await secured.started(seccomp=cri.SecurityProfile(), capabilities=_add("SYS_ADMIN"))
    assert await secured.says(container, mount) == (0, "mounted")
    code, _ = await secured.says(await secured.started(seccomp=cri.SecurityProfile()), mount)
    assert code != 0


async def test_a_profile_of_the_host(secured: Secured, tmp_path: Path) -> None:
    profile = _profile(tmp_path, "chmod", "fchmodat")
    container = await secured.started("chmod 700 /tmp; exec sleep 1000", seccomp=profile)
    code, text = await secured.says(container, "chmod 400 /etc/passwd")
    assert code != 0 and "Permission denied" in text
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        (tmp_path / "profile.json").write_text("{")
        await secured.create(seccomp=profile)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT and "not JSON" in str(raised.value)


async def test_privileged_has_the_whole_zone(secured: Secured, tmp_path: Path) -> None:
    container = await secured.started(privileged=True, seccomp=_profile(tmp_path, "mount"))
    assert await secured.says(container, "mkdir /m && mount -t tmpfs none /m && echo yes") == (0, "yes")
    code, text = await secured.says(container, "grep -e Seccomp: -e CapBnd /proc/self/status")
    plain = await secured.started(readonly_paths=["/proc/sys"])
    _, less = await secured.says(plain, "grep CapBnd /proc/self/status")
    assert code == 0 and "Seccomp:\t0" in text and less not in text
    assert await secured.says(container, "test -w /proc/sys/kernel/domainname && echo yes") == (0, "yes")
    assert (await secured.says(plain, "echo x >/proc/sys/kernel/domainname"))[0] != 0


async def test_shared_memory_of_the_pod(secured: Secured) -> None:
    one, two = await secured.started(), await secured.started()
    alone = await secured.started(namespace_options=cri.NamespaceOption(pid=cri.CONTAINER, ipc=cri.CONTAINER))
    host = await secured.started(namespace_options=cri.NamespaceOption(pid=cri.CONTAINER, ipc=cri.NODE))
    assert (await secured.says(one, "echo shared >/dev/shm/note"))[0] == 0
    assert await secured.says(two, "cat /dev/shm/note") == (0, "shared")
    assert await secured.says(host, "cat /dev/shm/note") == (0, "shared")
    assert (await secured.says(alone, "ls /dev/shm")) == (0, "")
    places = [(await secured.says(each, "readlink /proc/self/ns/ipc"))[1] for each in (one, two, host, alone)]
    assert places[0] == places[1] == places[2] != places[3]


async def test_processes_of_a_target(secured: Secured) -> None:
    target = await secured.started("sleep 1004 & wait")
    options = cri.NamespaceOption(pid=cri.TARGET, target_id=target)
    debugger = await secured.started(namespace_options=options)
    _, text = await secured.says(debugger, "ps -o pid,args")
    assert "sleep 1004" in text and "sleep 1000" in text
    _, first = await secured.says(debugger, "tr '\\0' ' ' </proc/1/cmdline")
    assert first.startswith("sh -c sleep 1004")
    await secured.stage.runtime.StopContainer(cri.StopContainerRequest(container_id=target))
    assert (await secured.stage.exited(debugger)).exit_code == 137
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await secured.create(namespace_options=options)
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_processes_of_the_zone(secured: Secured) -> None:
    """HostPID means the zone's processes, as POD does; a debugger joins its target's namespace."""
    await secured.started("exec sleep 1005", namespace_options=SHARED)
    host = await secured.started(namespace_options=cri.NamespaceOption(pid=cri.NODE))
    debugger = await secured.started(namespace_options=cri.NamespaceOption(pid=cri.TARGET, target_id=host))
    for container in (host, debugger):
        assert "sleep 1005" in (await secured.says(container, "ps -o args"))[1]


async def test_forking_processes_end_with_their_container(secured: Secured) -> None:
    """In the shared process namespace, where the kernel does not end them."""
    watcher = await secured.started(namespace_options=SHARED)
    busy = "while :; do (sleep 1006 & :); usleep 1000; done"
    container = await secured.started(
        f"({busy}) & ({busy}) & usleep 300000; exit 3", namespace_options=SHARED
    )
    assert (await secured.stage.exited(container)).exit_code == 3
    gone = "while ps -o args | grep -q '[s]leep 1006'; do usleep 10000; done; echo gone"
    assert await secured.says(watcher, gone) == (0, "gone")


async def test_ambient_capability_of_a_user_is_its_only_capability(secured: Secured) -> None:
    ambient = cri.Capability(drop_capabilities=["ALL"], add_ambient_capabilities=["NET_BIND_SERVICE"])
    container = await secured.started(run_as_user=cri.Int64Value(value=1000), capabilities=ambient)
    _, text = await secured.says(container, "grep Cap /proc/self/status")
    sets = dict(line.split(":\t") for line in text.splitlines())
    assert {sets[name] for name in ("CapBnd", "CapEff", "CapPrm", "CapAmb")} == {f"{1 << 10:016x}"}
    none = await secured.started(capabilities=cri.Capability(drop_capabilities=["ALL"]))
    assert "CapEff:\t0000000000000000" in (await secured.says(none, "cat /proc/self/status"))[1]


async def test_home_in_a_container_without_passwd(secured: Secured) -> None:
    container = await secured.started()
    assert await secured.says(container, "rm /etc/passwd") == (0, "")
    assert await secured.says(container, "env | grep ^HOME=") == (0, "HOME=/")


async def test_masked_and_readonly_paths(secured: Secured) -> None:
    """A missing path is passed over."""
    container = await secured.started(
        masked_paths=["/proc/uptime", "/x"], readonly_paths=["/etc", "/nowhere"]
    )
    assert await secured.says(container, "cat /proc/uptime") == (0, "")
    code, text = await secured.says(container, "touch /etc/x")
    assert code != 0 and "Read-only" in text
