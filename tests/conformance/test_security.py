"""The security context: a container's rights, seen from inside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cri.oci.capabilities import grantable
from cri.oci.oci_process import HARD_OPEN_FILES
from tests.support.cri.conformance import SuiteStage, linux, refused
from tests.support.cri.cri_daemons import needs_node
from tests.support.cri.events import PATIENCE
from tests.support.cri.stage import FOREVER
from tools.localnode.cri_client import Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="session")]


def number(value: int) -> cri.Int64Value:
    return cri.Int64Value(value=value)


async def caps(stage: SuiteStage, container: str) -> dict[str, int]:
    text = await stage.output(container, "grep Cap /proc/self/status")
    return {name: int(value, 16) for name, value in (line.split(":\t") for line in text.splitlines())}


def profile(folder: Path, *names: str) -> cri.SecurityProfile:
    """A profile on the host that denies system calls."""
    path = folder / "profile.json"
    rule = {"names": list(names), "action": "SCMP_ACT_ERRNO", "errnoRet": 13}
    path.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]}))
    return cri.SecurityProfile(profile_type=cri.SecurityProfile.Localhost, localhost_ref=str(path))


async def test_users_and_groups_are_set_and_unknown_user_refused(stage: SuiteStage, shared_pod: Pod) -> None:
    numbers = linux(run_as_user=number(1234), run_as_group=number(2345), supplemental_groups=[77])
    container = await stage.started(shared_pod, linux=numbers)
    assert await stage.output(container, "id -u; id -g; id -G") == "1234\n2345\n2345 77"
    merged = await stage.started(shared_pod, linux=linux(run_as_username="web", supplemental_groups=[77]))
    assert await stage.output(merged, "id -u; id -g") == "101\n102"
    assert set((await stage.output(merged, "id -G")).split()) == {"102", "103", "77"}
    strict = linux(
        run_as_username="web",
        supplemental_groups=[77],
        supplemental_groups_policy=cri.SupplementalGroupsPolicy.Strict,
    )
    alone = await stage.started(shared_pod, linux=strict)
    assert set((await stage.output(alone, "id -G")).split()) == {"102", "77"}
    shown = (await stage.status(alone)).user.linux
    assert (shown.uid, shown.gid, set(shown.supplemental_groups)) == (101, 102, {102, 77})
    with refused("INVALID_ARGUMENT", "nobody-knows"):
        await stage.create(shared_pod, linux=linux(run_as_username="nobody-knows"))


async def test_home_comes_from_passwd_unless_set(stage: SuiteStage, shared_pod: Pod, tmp_path: Path) -> None:
    """From the image's passwd; "/" for an unknown user, unless a mount brings another passwd."""
    mounted = tmp_path / "passwd"
    mounted.write_text("late:x:1234:1234::/late:/bin/sh\n")
    passwd = cri.Mount(host_path=str(mounted), container_path="/etc/passwd", readonly=True)
    own = [cri.KeyValue(key="HOME", value=b"/own")]
    empty = [cri.KeyValue(key="HOME", value=b"")]
    cases: list[tuple[int, str, dict[str, Any]]] = [
        (0, "/root", {}),
        (101, "/srv/web", {}),
        (1234, "/", {}),
        (1234, "/", {"envs": empty}),
        (0, "/root", {"envs": empty}),
        (1234, "/own", {"envs": own}),
        (1234, "/late", {"mounts": [passwd]}),
    ]
    for user, home, fields in cases:
        security = linux(run_as_user=number(user))
        script = "env | grep ^HOME=; exec sleep 100000"
        container = await stage.started(shared_pod, script, linux=security, **fields)
        assert await stage.output(container, "env | grep ^HOME=") == f"HOME={home}", (user, fields)
        assert await stage.logged(container, "HOME") == [f"stdout F HOME={home}"], (user, fields)


async def test_capabilities_are_the_defaults_with_requested_changes(
    stage: SuiteStage, shared_pod: Pod
) -> None:
    chown, net_admin, bind = 1 << 0, 1 << 12, 1 << 10
    plain = (await caps(stage, await stage.started(shared_pod)))["CapEff"]
    assert plain & chown and not plain & net_admin
    change = cri.Capability(add_capabilities=["NET_ADMIN"], drop_capabilities=["CHOWN"])
    changed = (await caps(stage, await stage.started(shared_pod, linux=linux(capabilities=change))))["CapEff"]
    assert changed == plain & ~chown | net_admin
    none = cri.Capability(drop_capabilities=["ALL"])
    assert (await caps(stage, await stage.started(shared_pod, linux=linux(capabilities=none))))["CapBnd"] == 0
    every = cri.Capability(add_capabilities=["ALL"])
    most = (await caps(stage, await stage.started(shared_pod, linux=linux(capabilities=every))))["CapEff"]
    assert most & plain == plain and most & net_admin and most != plain
    ambient = cri.Capability(drop_capabilities=["ALL"], add_ambient_capabilities=["NET_BIND_SERVICE"])
    user = await stage.started(shared_pod, linux=linux(run_as_user=number(1000), capabilities=ambient))
    found = await caps(stage, user)
    assert {found[name] for name in ("CapBnd", "CapEff", "CapPrm", "CapAmb")} == {bind}


async def test_privileged_within_the_zone(stage: SuiteStage, shared_pod: Pod) -> None:
    container = await stage.started(shared_pod, linux=linux(privileged=True))
    assert await stage.output(container, "mkdir /m && mount -t tmpfs none /m && echo yes") == "yes"
    assert "Seccomp:\t0" in await stage.output(container, "cat /proc/self/status")
    async with stage.pod("plain") as pod:
        with refused("FAILED_PRECONDITION", "its pod sandbox is not"):
            await stage.create(pod, linux=linux(privileged=True))


async def test_read_only_root_and_no_new_privileges(stage: SuiteStage, shared_pod: Pod) -> None:
    container = await stage.started(shared_pod, linux=linux(readonly_rootfs=True, no_new_privs=True))
    code, text = await stage.says(container, "touch /x")
    assert code != 0 and "Read-only" in text
    assert "NoNewPrivs:\t1" in await stage.output(container, "cat /proc/self/status")
    plain = await stage.started(shared_pod)
    assert "NoNewPrivs:\t0" in await stage.output(plain, "touch /x; cat /proc/self/status")


async def test_masked_and_read_only_paths(stage: SuiteStage, shared_pod: Pod) -> None:
    security = linux(masked_paths=["/proc/uptime", "/nowhere"], readonly_paths=["/etc"])
    container = await stage.started(shared_pod, linux=security)
    assert await stage.output(container, "cat /proc/uptime") == ""
    code, text = await stage.says(container, "touch /etc/x")
    assert code != 0 and "Read-only" in text


async def test_seccomp_profile_applies_and_missing_profile_is_refused(
    stage: SuiteStage, shared_pod: Pod, tmp_path: Path
) -> None:
    default = await stage.started(shared_pod, linux=linux(seccomp=cri.SecurityProfile()))
    assert "Seccomp:\t2" in await stage.output(default, "cat /proc/1/status")
    code, text = await stage.says(default, "unshare -U true")
    assert code != 0 and "not permitted" in text
    own = await stage.started(shared_pod, linux=linux(seccomp=profile(tmp_path, "chmod", "fchmodat")))
    code, text = await stage.says(own, "chmod 400 /etc/passwd")
    assert code != 0 and "Permission denied" in text
    unconfined = cri.SecurityProfile(profile_type=cri.SecurityProfile.Unconfined)
    free = await stage.started(shared_pod, linux=linux(seccomp=unconfined))
    assert "Seccomp:\t0" in await stage.output(free, "cat /proc/1/status")
    missing = cri.SecurityProfile(
        profile_type=cri.SecurityProfile.Localhost, localhost_ref=str(tmp_path / "none.json")
    )
    with refused("FAILED_PRECONDITION", "none.json"):
        await stage.create(shared_pod, linux=linux(seccomp=missing))


async def test_missing_profiles_are_refused(stage: SuiteStage, shared_pod: Pod) -> None:
    apparmor = cri.SecurityProfile(profile_type=cri.SecurityProfile.Localhost, localhost_ref="nosuch")
    with refused("FAILED_PRECONDITION", "nosuch", "not loaded"):
        await stage.create(shared_pod, linux=linux(apparmor=apparmor))
    with refused("FAILED_PRECONDITION", "nosuch", "not loaded"):
        await stage.create(shared_pod, linux=linux(apparmor_profile="localhost/nosuch"))
    default = await stage.started(shared_pod, linux=linux(apparmor=cri.SecurityProfile()))
    assert (await stage.status(default)).state == cri.CONTAINER_RUNNING


async def test_processes_of_pod_container_and_target(stage: SuiteStage, shared_pod: Pod) -> None:
    shared = linux(namespace_options=cri.NamespaceOption(pid=cri.POD))
    alone = await stage.started(shared_pod, "exec sleep 1001")
    first = await stage.started(shared_pod, "exec sleep 1002", linux=shared)
    seen = await stage.output(await stage.started(shared_pod, linux=shared), "ps -o args")
    assert "sleep 1002" in seen and "sleep 1001" in seen
    assert await stage.output(alone, "cat /proc/1/cmdline | tr '\\0' ' '") == "sleep 1001"
    assert "sleep 1002" not in await stage.output(alone, "ps -o args")
    target = cri.NamespaceOption(pid=cri.TARGET, target_id=alone)
    debugger = await stage.started(shared_pod, linux=linux(namespace_options=target))
    assert "sleep 1001" in await stage.output(debugger, "cat /proc/1/cmdline | tr '\\0' ' '")
    stop = cri.StopContainerRequest(container_id=alone)
    await stage.runtime.StopContainer(stop, timeout=PATIENCE)
    assert (await stage.ended(debugger)).exit_code == 137
    assert (await stage.status(first)).state == cri.CONTAINER_RUNNING


async def test_namespaces_of_the_host(stage: SuiteStage, shared_pod: Pod) -> None:
    """Refused, except by a handler that gives the zone's namespaces, to a pod and its containers alike."""
    for options, word in (
        (cri.NamespaceOption(pid=cri.NODE), "hostPID"),
        (cri.NamespaceOption(pid=cri.CONTAINER, ipc=cri.NODE), "hostIPC"),
    ):
        pod_linux = cri.LinuxPodSandboxConfig(
            security_context=cri.LinuxSandboxSecurityContext(namespace_options=options)
        )
        with refused("FAILED_PRECONDITION", word, "another runtime", "handler zone"):
            await stage.run_pod("host", linux=pod_linux)
        with refused("FAILED_PRECONDITION", word):
            await stage.create(shared_pod, linux=linux(namespace_options=options))
        async with stage.pod("zone", handler="zone", linux=pod_linux) as pod:
            shared = linux(namespace_options=cri.NamespaceOption(pid=cri.POD))
            first = await stage.started(pod, "echo x >/dev/shm/note; exec sleep 1003", linux=shared)
            host = await stage.started(pod, linux=linux(namespace_options=options))
            seen = await stage.output(host, "ps -o args; readlink /proc/self/ns/ipc; ls /dev/shm")
            ipc = await stage.output(first, "readlink /proc/self/ns/ipc")
            assert ipc in seen and seen.endswith("note")
            assert ("sleep 1003" in seen) == (word == "hostPID")
            await stage.tidy()


async def test_selinux_labels_without_selinux_have_no_effect(stage: SuiteStage, shared_pod: Pod) -> None:
    """Labels have no effect if the zone's kernel has no SELinux, as in other runtimes."""
    label = cri.SELinuxOption(user="u", role="r", type="container_t", level="s0:c1,c2")
    container = await stage.started(shared_pod, linux=linux(selinux_options=label))
    assert (await stage.status(container)).state == cri.CONTAINER_RUNNING
    security = cri.LinuxSandboxSecurityContext(selinux_options=label)
    async with stage.pod("labelled", linux=cri.LinuxPodSandboxConfig(security_context=security)):
        pass
    with refused("INVALID_ARGUMENT", "SELinux level"):
        odd = linux(selinux_options=cri.SELinuxOption(level="secret"))
        await stage.create(shared_pod, linux=odd)


async def test_shared_memory_of_the_pod_and_of_a_container(stage: SuiteStage, shared_pod: Pod) -> None:
    own = cri.NamespaceOption(pid=cri.CONTAINER, ipc=cri.CONTAINER)
    one, two, alone = (
        await stage.started(shared_pod),
        await stage.started(shared_pod),
        await stage.started(shared_pod, linux=linux(namespace_options=own)),
    )
    await stage.output(one, "echo shared >/dev/shm/note")
    assert await stage.output(two, "cat /dev/shm/note") == "shared"
    assert await stage.output(alone, "ls /dev/shm") == ""
    places = [await stage.output(each, "readlink /proc/self/ns/ipc") for each in (one, two, alone)]
    assert places[0] == places[1] != places[2]
    await stage.output(two, "rm /dev/shm/note")


@pytest.mark.parametrize("size", [128 << 20, 512 << 20])
async def test_shared_memory_follows_the_memory_of_the_zone(stage: SuiteStage, size: int) -> None:
    """Up to half of the memory; a kernel counts memory beyond its own need."""
    async with stage.pod("sized", annotations={"xenpod.dev/memory": str(size)}) as pod:
        container = await stage.started(pod)
        most = int((await stage.output(container, "df -k /dev/shm | tail -n 1")).split()[1]) * 1024
        assert size // 4 < most <= size // 2
        await stage.tidy()


async def test_limits_of_a_process(stage: SuiteStage, shared_pod: Pod) -> None:
    resources = cri.LinuxContainerResources(oom_score_adj=500)
    container = await stage.started(shared_pod, linux=linux(resources))
    limits = "ulimit -Sn; ulimit -Hn; ulimit -Sn $(ulimit -Hn); ulimit -Sn"
    # A host without the capability keeps the hard limit at the soft limit.
    most = HARD_OPEN_FILES if "SYS_RESOURCE" in grantable() else 16384
    expected = f"16384\n{most}\n{most}"
    assert await stage.output(container, f"cat /proc/1/oom_score_adj; {limits}") == f"500\n{expected}"
    # a limit that the host forbids is skipped
    await stage.started(shared_pod, linux=linux(cri.LinuxContainerResources(oom_score_adj=-998)))


LOW_PORT = (
    "nc -l -p 81 </dev/null >/dev/null 2>&1 & "
    "until grep -q ':0051 .* 0A ' /proc/net/tcp /proc/net/tcp6; do kill -0 $! || exit 1; usleep 20000; done; "
    "kill $!"
)
"""Listens on port 81 for a moment."""


async def test_low_ports_and_ping_are_free_for_every_user(stage: SuiteStage, shared_pod: Pod) -> None:
    """As in containerd 2, without any capability."""
    nothing = cri.Capability(drop_capabilities=["ALL"])
    container = await stage.started(shared_pod, linux=linux(run_as_user=number(1234), capabilities=nothing))
    await stage.output(container, LOW_PORT)
    shown = await stage.output(container, "cat /proc/sys/net/ipv4/ping_group_range")
    assert shown.split() == ["0", "2147483647"]


async def test_pod_can_restrict_low_ports_and_ping(stage: SuiteStage) -> None:
    sysctls = {"net.ipv4.ip_unprivileged_port_start": "82", "net.ipv4.ping_group_range": "1 0"}
    async with stage.pod("strict", linux=cri.LinuxPodSandboxConfig(sysctls=sysctls)) as pod:
        nothing = cri.Capability(drop_capabilities=["ALL"])
        container = await stage.started(pod, linux=linux(run_as_user=number(1234), capabilities=nothing))
        assert (await stage.says(container, LOW_PORT))[0] == 1
        shown = await stage.output(container, "cat /proc/sys/net/ipv4/ping_group_range")
        assert shown.split() == ["1", "0"]


async def test_huge_pages_unknown_device_and_host_network_are_refused_by_name(
    stage: SuiteStage, shared_pod: Pod
) -> None:
    pages = cri.LinuxContainerResources(hugepage_limits=[cri.HugepageLimit(page_size="2MB", limit=2 << 20)])
    with refused("UNIMPLEMENTED", "2MB"):
        await stage.create(shared_pod, linux=linux(pages))
    none = cri.LinuxContainerResources(hugepage_limits=[cri.HugepageLimit(page_size="2MB", limit=0)])
    await stage.create(shared_pod, FOREVER, linux=linux(none))
    with refused("FAILED_PRECONDITION", "vendor.com/gpu=0"):
        await stage.create(shared_pod, CDI_devices=[cri.CDIDevice(name="vendor.com/gpu=0")])
    with refused("INVALID_ARGUMENT", "not a name"):
        await stage.create(shared_pod, CDI_devices=[cri.CDIDevice(name="not a name")])
    with refused("INVALID_ARGUMENT", "/dev/null", "not a block device"):
        await stage.create(
            shared_pod, devices=[cri.Device(host_path="/dev/null", container_path="/dev/null")]
        )
    with refused("NOT_FOUND", "no device has this name"):
        await stage.create(shared_pod, CDI_devices=[cri.CDIDevice(name="xenpod.dev/device=nothing")])
    with refused("FAILED_PRECONDITION", "host's network"):
        options = cri.NamespaceOption(pid=cri.CONTAINER, network=cri.NODE)
        await stage.create(shared_pod, linux=linux(namespace_options=options))


async def test_environment_and_working_directory_reach_the_container(
    stage: SuiteStage, shared_pod: Pod
) -> None:
    envs = [cri.KeyValue(key="GREETING", value=b"good morning")]
    container = await stage.started(shared_pod, envs=envs, working_dir="/var")
    assert await stage.output(container, "pwd; echo $GREETING; echo $FROM_IMAGE") == "/var\ngood morning\nyes"
