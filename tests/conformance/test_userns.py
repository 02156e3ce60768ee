"""User namespaces: the pod's root is nobody in the zone, and keeps the rights of a pod's root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.test_security import LOW_PORT
from tests.support.cri.conformance import SuiteStage, linux, refused
from tests.support.cri.cri_daemons import needs_node
from tests.support.protect.disk_source import DiskSource
from tools.localnode.cri_client import Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="session")]
FIRST, LENGTH = 655_360, 65_536
IDS = (cri.IDMapping(container_id=0, host_id=FIRST, length=LENGTH),)


def users(ids: tuple[cri.IDMapping, ...] = IDS) -> cri.UserNamespace:
    return cri.UserNamespace(mode=cri.POD, uids=ids, gids=ids)


def of_pod(**fields: Any) -> cri.LinuxPodSandboxConfig:
    options = cri.NamespaceOption(pid=cri.CONTAINER, userns_options=users())
    security = cri.LinuxSandboxSecurityContext(namespace_options=options, privileged=True)
    return cri.LinuxPodSandboxConfig(security_context=security, **fields)


def mapped(pid: cri.NamespaceMode.ValueType = cri.CONTAINER, **security: Any) -> cri.LinuxContainerConfig:
    options = cri.NamespaceOption(pid=pid, userns_options=users())
    return linux(namespace_options=options, **security)


async def test_user_namespaces_are_advertised_by_all_handlers(stage: SuiteStage) -> None:
    handlers = (await stage.runtime.Status(cri.StatusRequest())).runtime_handlers
    assert handlers and all(handler.features.user_namespaces for handler in handlers)


async def test_root_of_a_pod(stage: SuiteStage) -> None:
    sysctls = {"net.ipv4.ip_unprivileged_port_start": "1024", "kernel.shmmni": "123"}
    async with stage.pod("mapped", linux=of_pod(sysctls=sysctls)) as pod:
        container = await stage.started(pod, linux=mapped())
        said = await stage.output(container, "cat /proc/self/uid_map /proc/self/gid_map; id -u")
        assert said.split() == ["0", str(FIRST), str(LENGTH)] * 2 + ["0"]
        await _its_files(stage, container)
        await _its_namespaces(stage, container)
        status = (await stage.status(container)).user.linux
        assert (status.uid, status.gid) == (0, 0)
        await _other_containers(stage, pod)


async def test_low_ports_and_ping_are_free_for_every_user_of_a_pod(stage: SuiteStage) -> None:
    async with stage.pod("mapped-ports", linux=of_pod()) as pod:
        nothing = cri.Capability(drop_capabilities=["ALL"])
        user = cri.Int64Value(value=LENGTH - 1)
        container = await stage.started(
            pod, linux=mapped(run_as_user=user, run_as_group=user, capabilities=nothing)
        )
        await stage.output(container, LOW_PORT)
        shown = await stage.output(container, "cat /proc/sys/net/ipv4/ping_group_range")
        assert shown.split() == ["0", str(LENGTH - 1)]


async def _its_files(stage: SuiteStage, container: str) -> None:
    script = "echo x >/etc/new && rm /etc/group && stat -c '%u %g' / /bin /etc/new /etc/hosts /bin/busybox"
    assert set((await stage.output(container, script)).splitlines()) == {"0 0"}
    owned = "echo y >>/etc/hosts && chown 65535:7 /etc/new && stat -c '%u %g' /etc/new; echo z >/dev/stderr"
    assert await stage.says(container, owned) == (0, "65535 7\nz")
    code, text = await stage.says(container, "chown 65536 /etc/new")
    assert code != 0 and "Invalid argument" in text


async def _its_namespaces(stage: SuiteStage, container: str) -> None:
    sysctls = "/proc/sys/kernel/shmmni /proc/sys/net/ipv4/ip_unprivileged_port_start"
    said = await stage.output(container, f"cat {sysctls}; ls /sys/class/net")
    assert said.split() == ["123", "1024", "eth0", "lo"]
    # The command returns once the server listens: the port wants NET_BIND_SERVICE in the network's user
    # namespace.
    await stage.output(container, "httpd -p 80 -h /etc")
    assert await stage.output(container, "wget -q -O - http://127.0.0.1/new") == "x"
    await stage.output(container, "echo shared >/dev/shm/note; ls /dev/mqueue /sys/fs/cgroup >/dev/null")


async def _other_containers(stage: SuiteStage, pod: Pod) -> None:
    other = await stage.started(pod, linux=mapped(run_as_user=cri.Int64Value(value=1000)))
    script = "id -u; cat /dev/shm/note; stat -c %u /dev/shm/note; echo out >/dev/stdout"
    assert (await stage.output(other, script)).split() == ["1000", "shared", "0", "out"]
    code, text = await stage.says(other, "httpd -p 81")
    assert code != 0 and "Permission denied" in text
    await stage.started(pod, "exec sleep 1003", linux=mapped(pid=cri.POD))
    zone = await stage.started(pod, linux=mapped(pid=cri.POD))
    assert "sleep 1003" in await stage.output(zone, "ps -o args")
    code, text = await stage.says(zone, "kill -0 1")
    assert code != 0 and "not permitted" in text
    options = cri.NamespaceOption(pid=cri.TARGET, target_id=other, userns_options=users())
    trace = cri.Capability(add_capabilities=["SYS_PTRACE"])
    debugger = await stage.started(pod, linux=linux(namespace_options=options, capabilities=trace))
    assert "sleep 100000" in await stage.output(debugger, "ps -o args; cat /proc/1/environ >/dev/null")
    privileged = await stage.started(pod, linux=mapped(privileged=True))
    script = "mkdir /m && mount -t tmpfs none /m && ip addr add 192.0.2.7/32 dev lo && echo yes"
    assert await stage.output(privileged, script) == "yes"
    usual = "/dev/full /dev/null /dev/random /dev/tty /dev/urandom /dev/zero"
    assert await stage.output(privileged, "echo $(find /dev/* -prune -type c | sort)") == usual
    code, text = await stage.says(privileged, "mknod /m/null c 1 3 && echo x >/m/null")
    assert code != 0 and "not permitted" in text


@pytest.fixture
def source(tmp_path: Path) -> Iterator[DiskSource]:
    """A file system with support for mapped ids, independent of the host's."""
    with DiskSource(tmp_path) as source:
        yield source


async def test_owners_of_mapped_volumes_are_the_pods(stage: SuiteStage, source: DiskSource) -> None:
    """Owners of mapped mounts are the pod's; without mappings they are nobody."""
    folder = source.path
    folder.chmod(0o755)
    (folder / "theirs").write_text("")
    os.chown(folder / "theirs", 12, 34)
    mounts = [
        cri.Mount(host_path=str(folder), container_path="/v", uidMappings=IDS, gidMappings=IDS),
        cri.Mount(host_path=str(folder), container_path="/w"),
    ]
    async with stage.pod("volumes", linux=of_pod()) as pod:
        container = await stage.started(pod, linux=mapped(), mounts=mounts)
        script = (
            "echo mine >/v/mine; mkdir /v/d; chown 5:6 /v/d; stat -c '%u %g' /v/theirs /v/mine /v/d /w/theirs"
        )
        said = await stage.output(container, script)
        assert said.splitlines() == ["12 34", "0 0", "5 6", "65534 65534"]
        made = [(folder / name).stat() for name in ("mine", "d")]
        assert [(one.st_uid, one.st_gid) for one in made] == [(0, 0), (5, 6)]
        code, text = await stage.says(container, "touch /w/no")
        assert code != 0 and "denied" in text


async def test_id_mappings_other_than_the_pods_are_refused(
    stage: SuiteStage, shared_pod: Pod, tmp_path: Path
) -> None:
    other = (cri.IDMapping(container_id=0, host_id=FIRST + LENGTH, length=LENGTH),)
    with refused("INVALID_ARGUMENT", "not that of its pod"):
        await stage.create(shared_pod, linux=mapped())
    async with stage.pod("mapped", linux=of_pod()) as pod:
        with refused("INVALID_ARGUMENT", "not that of its pod"):
            await stage.create(pod)
        options = cri.NamespaceOption(pid=cri.CONTAINER, userns_options=users(other))
        with refused("INVALID_ARGUMENT", "not that of its pod"):
            await stage.create(pod, linux=linux(namespace_options=options))
        mount = cri.Mount(host_path=str(tmp_path), container_path="/v", uidMappings=other, gidMappings=other)
        with refused("INVALID_ARGUMENT", "id mappings"):
            await stage.create(pod, linux=mapped(), mounts=[mount])
