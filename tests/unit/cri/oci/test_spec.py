"""The OCI configuration, part by part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri.config import ContainerDefaults
from cri.container.signals import cri_signal, number, stop_signal
from cri.oci.capabilities import ALL, DEFAULT, capabilities, grantable
from cri.oci.mounts import MASKED, READONLY
from cri.oci.oci_process import PATH, arguments, environment, process
from cri.oci.pod_files import pod_files
from cri.oci.resources import resources
from cri.oci.spec import spec
from cri.oci.user import User
from daemonkit.faults import Invalid
from daemonkit.quantity import within
from images.bounds.identity import Uid
from tests.support.cri.cri_node import IMAGE, container_config
from xenpod_proto.cri.v1 import runtime_pb2 as cri

Security = cri.LinuxContainerSecurityContext

COMMANDS: list[tuple[dict[str, Any], tuple[str, ...], tuple[str, ...], list[str]]] = [
    ({}, ("entry",), ("cmd",), ["entry", "cmd"]),
    ({"args": ["a"]}, ("entry",), ("cmd",), ["entry", "a"]),
    ({"command": ["c"]}, ("entry",), ("cmd",), ["c"]),
    ({"command": ["c"], "args": ["a"]}, ("entry",), ("cmd",), ["c", "a"]),
    ({"args": ["a"]}, (), ("cmd",), ["a"]),
    ({}, (), ("cmd",), ["cmd"]),
    ({}, ("entry",), (), ["entry"]),
]


@pytest.mark.parametrize(("asked", "entrypoint", "cmd", "expected"), COMMANDS)
def test_arguments_follow_image_and_container(
    asked: dict[str, Any], entrypoint: tuple[str, ...], cmd: tuple[str, ...], expected: list[str]
) -> None:
    image = replace(IMAGE, entrypoint=entrypoint, cmd=cmd)
    assert arguments(container_config(**asked), image) == expected


@pytest.mark.parametrize("cmd", [(), ("",)])
def test_no_arguments_at_all(cmd: tuple[str, ...]) -> None:
    with pytest.raises(Invalid, match="no command"):
        arguments(container_config(), replace(IMAGE, entrypoint=(), cmd=cmd))


def test_the_last_variable_of_a_name_counts() -> None:
    config = container_config(envs=[cri.KeyValue(key="A", value=b"cri"), cri.KeyValue(key="B", value=b"x=y")])
    image = replace(IMAGE, env=("A=image", "C=", "not a variable", "=odd"))
    assert environment(config, image, "host") == [PATH, "HOSTNAME=host", "A=cri", "C=", "B=x=y"]
    assert "TERM=xterm" in environment(container_config(tty=True), image, "host")


HOMES: list[tuple[dict[str, Any], str, int, list[str]]] = [
    ({}, IMAGE.passwd, 0, []),
    ({}, IMAGE.passwd, 101, []),
    ({}, IMAGE.passwd, 1234, ["HOME=/"]),
    ({}, "", 1234, []),
    ({"envs": [cri.KeyValue(key="HOME", value=b"")]}, IMAGE.passwd, 0, []),
    ({"envs": [cri.KeyValue(key="HOME", value=b"")]}, IMAGE.passwd, 1234, ["HOME=/"]),
    ({"envs": [cri.KeyValue(key="HOME", value=b"/own")]}, IMAGE.passwd, 1234, ["HOME=/own"]),
    ({"mounts": [cri.Mount(container_path="/etc/passwd")]}, IMAGE.passwd, 1234, []),
    ({"mounts": [cri.Mount(container_path="//etc/.")]}, IMAGE.passwd, 1234, []),
    ({"mounts": [cri.Mount(container_path="/etc/ssl")]}, IMAGE.passwd, 1234, ["HOME=/"]),
]


@pytest.mark.parametrize(("asked", "passwd", "uid", "home"), HOMES)
def test_home_is_the_root_for_a_user_whom_passwd_does_not_have(
    asked: dict[str, Any], passwd: str, uid: int, home: list[str]
) -> None:
    """HOME stays unset if crun finds it: in the container's own passwd, at the start of a process."""
    made = process(container_config(**asked), replace(IMAGE, passwd=passwd), User(Uid(uid)), "host", 1024)
    env = made["env"]
    assert isinstance(env, list) and [pair for pair in env if pair.startswith("HOME=")] == home


def _caps(**fields: list[str]) -> dict[str, Any]:
    return dict(capabilities(cri.Capability(**fields), frozenset(ALL)))


def test_capabilities_follow_added_dropped_and_ambient_requests() -> None:
    plain = _caps()
    assert set(plain) == {"bounding", "effective", "permitted"}
    assert set(plain["bounding"]) == {f"CAP_{name}" for name in DEFAULT}
    changed = _caps(add_capabilities=["net_admin", "CAP_SYS_TIME"], drop_capabilities=["CHOWN"])["effective"]
    assert {"CAP_NET_ADMIN", "CAP_SYS_TIME"} <= set(changed) and "CAP_CHOWN" not in changed
    assert _caps(drop_capabilities=["ALL"])["bounding"] == []
    assert _caps(drop_capabilities=["ALL"], add_capabilities=["KILL"])["bounding"] == ["CAP_KILL"]
    assert len(_caps(add_capabilities=["ALL"])["bounding"]) == len(ALL) == 41
    some = _caps(add_capabilities=["ALL"], drop_capabilities=["SYS_ADMIN"])["bounding"]
    assert len(some) == 40 and "CAP_SYS_ADMIN" not in some
    few = capabilities(cri.Capability(add_capabilities=["ALL", "SYS_TIME"]), frozenset({"KILL"}))
    assert few["bounding"] == ["CAP_KILL", "CAP_SYS_TIME"]
    assert grantable() <= frozenset(ALL)
    ambient = _caps(add_ambient_capabilities=["NET_BIND_SERVICE"])
    assert ambient["ambient"] == ambient["inheritable"] == ["CAP_NET_BIND_SERVICE"]
    assert "CAP_NET_BIND_SERVICE" in ambient["permitted"]


def test_resources_are_translated_and_unset_values_omitted() -> None:
    assert set(resources(cri.LinuxContainerResources(), 0)) == {"devices"}
    full = cri.LinuxContainerResources(
        cpu_shares=1, cpu_quota=-1, cpu_period=100_000, cpuset_cpus="0-1", cpuset_mems="0",
        memory_limit_in_bytes=1 << 20, memory_swap_limit_in_bytes=2 << 20, unified={"memory.high": "5"},
        hugepage_limits=[cri.HugepageLimit(page_size="2MB", limit=0)],
    )  # fmt: skip
    made = dict(resources(full, 99))
    assert made["cpu"] == {"shares": 2, "period": 100_000, "cpus": "0-1", "mems": "0"}
    assert made["memory"] == {"limit": 1 << 20, "swap": 2 << 20}
    assert made["pids"] == {"limit": 99} and made["unified"] == {"memory.high": "5"}
    assert "hugepageLimits" not in made


def _spec(**fields: Any) -> dict[str, Any]:
    config = container_config(**fields)
    first = process(config, IMAGE, User(), "host", 1024)
    return dict(spec("c" * 64, config, first, ContainerDefaults()))


def test_the_zone_is_the_pod() -> None:
    made = _spec()
    assert sorted(each["type"] for each in made["linux"]["namespaces"]) == ["cgroup", "mount"]
    options = cri.NamespaceOption(pid=cri.CONTAINER)
    own = _spec(linux=cri.LinuxContainerConfig(security_context=Security(namespace_options=options)))
    assert sorted(each["type"] for each in own["linux"]["namespaces"]) == ["cgroup", "mount", "pid"]
    assert "seccomp" not in made["linux"]
    assert made["root"] == {"path": "rootfs", "readonly": False}
    assert made["linux"]["cgroupsPath"] == f"/workloads/{'c' * 64}"


@pytest.mark.parametrize(
    ("nofile", "raises", "hard"),
    [(1024, True, 524_288), (1_000_000, True, 1_000_000), (1024, False, 1024)],
)
def test_processes_may_raise_their_open_files_as_under_systemd_if_the_host_can(
    nofile: int, raises: bool, hard: int
) -> None:
    everything = frozenset(ALL) if raises else frozenset(ALL) - {"SYS_RESOURCE"}
    made = process(container_config(), IMAGE, User(), "host", nofile, everything)
    assert made["rlimits"] == [{"type": "RLIMIT_NOFILE", "soft": nofile, "hard": hard}]


def test_no_limit_of_open_files_leaves_the_agents() -> None:
    assert process(container_config(), IMAGE, User(), "host", 0)["rlimits"] == []


def test_files_are_mounted_from_the_containers_directory() -> None:
    mounts = {mount["destination"]: mount for mount in _spec()["mounts"]}
    assert mounts["/etc/hosts"]["source"] == f"/run/xenpod/containers/{'c' * 64}/files/hosts"
    assert "rw" in mounts["/etc/hosts"]["options"]
    readonly = cri.LinuxContainerConfig(security_context=Security(readonly_rootfs=True))
    mounts = {mount["destination"]: mount for mount in _spec(linux=readonly)["mounts"]}
    assert "ro" in mounts["/etc/resolv.conf"]["options"]
    assert "ro" in mounts["/sys"]["options"] and "ro" in mounts["/sys/fs/cgroup"]["options"]


def test_masked_paths_are_the_defaults_or_exactly_the_callers() -> None:
    assert _spec()["linux"]["maskedPaths"] == list(MASKED)
    assert _spec()["linux"]["readonlyPaths"] == list(READONLY)
    own = cri.LinuxContainerConfig(security_context=Security(masked_paths=["/bin/ls"]))
    assert _spec(linux=own)["linux"]["maskedPaths"] == ["/bin/ls"]
    assert _spec(linux=own)["linux"]["readonlyPaths"] == []


@pytest.mark.parametrize(("score", "expected"), [(500, 500), (0, None), (-998, None), (2000, None)])
def test_out_of_memory_scores_are_never_lowered(score: int, expected: int | None) -> None:
    linux = cri.LinuxContainerConfig(resources=cri.LinuxContainerResources(oom_score_adj=score))
    assert _spec(linux=linux)["process"].get("oomScoreAdj") == expected


def test_files_of_a_pod() -> None:
    dns = cri.DNSConfig(servers=["1.1.1.1", "8.8.8.8"], searches=["a.b", "c.d"], options=["ndots:5", "edns0"])
    files = pod_files(cri.PodSandboxConfig(dns_config=dns), "web", ["10.0.0.5", "fd00::5"])
    assert files["resolv.conf"] == (
        b"search a.b c.d\nnameserver 1.1.1.1\nnameserver 8.8.8.8\noptions ndots:5 edns0\n"
    )
    assert files["hosts"].endswith(b"10.0.0.5\tweb\nfd00::5\tweb\n")
    assert pod_files(cri.PodSandboxConfig(dns_config=cri.DNSConfig()), "web", [])["resolv.conf"] == b""


def test_without_dns_a_pod_has_the_hosts() -> None:
    own = pod_files(cri.PodSandboxConfig(), "web", [], b"nameserver 9.9.9.9\n")
    assert own["resolv.conf"] == b"nameserver 9.9.9.9\n"
    given = cri.PodSandboxConfig(dns_config=cri.DNSConfig())
    assert pod_files(given, "web", [], b"nameserver 9.9.9.9\n")["resolv.conf"] == b""


SIGNALS = [("SIGTERM", 15), ("term", 15), ("9", 9), ("SIGRTMIN", 34), ("SIGRTMIN+3", 37), ("RTMAX-1", 63),
           ("SIGCLD", 17), ("SIGPOLL", 29), ("SIGIOT", 6)]  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), SIGNALS)
def test_signals_are_found_by_name(name: str, expected: int) -> None:
    assert number(name) == expected


@pytest.mark.parametrize("name", ["", "SIGNOPE", "0", "65", "99999999999", "SIGRTMIN+40", "_IGN", "SIG_DFL"])
def test_unknown_signals_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a signal"):
        number(name)
    assert stop_signal(cri.RUNTIME_DEFAULT, name) == 15


def test_every_signal_of_cri_has_a_number_and_comes_back() -> None:
    for name, value in cri.Signal.items():
        if value != cri.RUNTIME_DEFAULT:
            assert number(cri.Signal.Name(cri_signal(number(name)))) == number(name)


QUANTITIES = [("1", 1), ("512Mi", 512 << 20), ("1.5Gi", 3 << 29), ("2k", 2000), ("0.5", 1), ("1P", 10**15)]


@pytest.mark.parametrize(("text", "expected"), QUANTITIES)
def test_quantities_are_parsed(text: str, expected: int) -> None:
    assert within(text, 10**16) == expected


@given(st.text(max_size=30))
def test_quantities_are_numbers_in_bounds_or_refused(text: str) -> None:
    try:
        assert 1 <= within(text, 1000) <= 1000
    except ValueError:
        pass
