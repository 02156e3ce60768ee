"""Seccomp profiles, namespaces, and the meaning of privileged, in the OCI configuration."""

from __future__ import annotations

import base64
import ctypes
import json
import platform
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri.config import ContainerDefaults
from cri.oci.capabilities import ALL, DEFAULT
from cri.oci.oci_process import process
from cri.oci.seccomp import DEFAULT as DEFAULT_PROFILE
from cri.oci.seccomp import local_profile, seccomp
from cri.oci.seccomp_bpf import compiled
from cri.oci.seccomp_profile import MACHINES, ContainerFacts, resolve_profile
from cri.oci.spec import spec
from cri.oci.user import User
from daemonkit.faults import Broken, Fault, Invalid, Unsupported
from daemonkit.host import seccomp as libseccomp
from tests.support.cri.cri_node import IMAGE, container_config
from xenpod_proto.cri.v1 import runtime_pb2 as cri

Security = cri.LinuxContainerSecurityContext
Profile = cri.SecurityProfile
X86 = ContainerFacts(frozenset({"CAP_CHOWN"}), MACHINES["x86_64"])
ALLOW_ALL: dict[str, Any] = {"defaultAction": "SCMP_ACT_ALLOW"}


def _resolved(profile: object, container: ContainerFacts = X86) -> dict[str, Any]:
    return dict(resolve_profile(json.dumps(profile).encode(), "p", container))


def _rules(*rules: dict[str, Any], container: ContainerFacts = X86) -> list[dict[str, Any]]:
    made = _resolved(ALLOW_ALL | {"syscalls": list(rules)}, container)["syscalls"]
    assert isinstance(made, list)
    return made


def _default(*capabilities: str, machine: str = "x86_64") -> dict[str, dict[str, Any]]:
    """The rules without arguments of our own profile, by system call."""
    granted = [f"CAP_{name}" for name in capabilities]
    made = seccomp(Security(seccomp=Profile()), granted, machine)
    assert made is not None
    rules: Any = made.profile["syscalls"]
    return {name: rule for rule in rules for name in rule["names"] if "args" not in rule}


def test_the_default_profile_depends_on_the_capabilities() -> None:
    plain = _default(*DEFAULT)
    for name in ("read", "execve", "openat", "futex", "getcpu", "rseq", "kill", "chown", "chroot"):
        assert plain[name]["action"] == "SCMP_ACT_ALLOW", name
    denied = (
        "mount", "unshare", "setns", "reboot", "init_module", "bpf", "ptrace", "keyctl", "io_uring_setup",
        "userfaultfd", "sethostname", "perf_event_open", "open_by_handle_at", "clock_settime",
    )  # fmt: skip
    for name in denied:
        assert (plain[name]["action"], plain[name]["errnoRet"]) == ("SCMP_ACT_ERRNO", 1), name
    assert not {"clone", "clone3"} & set(plain), "by its arguments; the other by the default, ENOSYS"
    admin = _default(*DEFAULT, "SYS_ADMIN")
    for name in ("mount", "unshare", "sethostname", "bpf", "clone", "clone3", "perf_event_open"):
        assert admin[name]["action"] == "SCMP_ACT_ALLOW", name
    assert admin["reboot"]["action"] == admin["keyctl"]["action"] == "SCMP_ACT_ERRNO"
    assert _default("BPF")["bpf"]["action"] == "SCMP_ACT_ALLOW"


@pytest.mark.parametrize("granted", [[], sorted(DEFAULT), list(ALL)])
def test_no_call_is_allowed_and_denied_by_the_default_profile(granted: list[str]) -> None:
    made = seccomp(Security(seccomp=Profile()), [f"CAP_{name}" for name in granted], "aarch64")
    assert made is not None and made.profile["architectures"] == ["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"]
    rules: Any = made.profile["syscalls"]
    actions: dict[str, set[str]] = {}
    for rule in rules:
        for name in rule["names"]:
            if "args" not in rule:
                actions.setdefault(name, set()).add(rule["action"])
    assert [name for name, found in actions.items() if len(found) != 1] == []


def test_every_condition_of_the_default_profile_names_a_capability() -> None:
    for rule in json.loads(DEFAULT_PROFILE.read_text())["syscalls"]:
        for side in ("includes", "excludes"):
            assert {cap.removeprefix("CAP_") for cap in rule.get(side, {}).get("caps", [])} <= set(ALL)


CONDITIONS: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"includes": {"caps": ["CAP_CHOWN"]}}, True),
    ({"includes": {"caps": ["CAP_CHOWN", "CAP_KILL"]}}, False),
    ({"excludes": {"caps": ["CAP_CHOWN", "CAP_KILL"]}}, False),
    ({"excludes": {"caps": ["CAP_KILL"]}}, True),
    ({"includes": {"arches": ["arm64", "amd64"]}}, True),
    ({"includes": {"arches": ["s390x"]}}, False),
    ({"excludes": {"arches": ["amd64"]}}, False),
    ({"includes": {"minKernel": "4.8"}}, True),
    ({"includes": {"minKernel": "99.0"}}, False),
    ({"excludes": {"minKernel": "4.8"}}, False),
    ({"includes": None, "excludes": {}}, True),
]


@pytest.mark.parametrize(("conditions", "applies"), CONDITIONS)
def test_conditions_decide_about_rules(conditions: dict[str, Any], applies: bool) -> None:
    rules = _rules({"names": ["chmod"], "action": "SCMP_ACT_ERRNO", **conditions})
    assert rules == ([{"names": ["chmod"], "action": "SCMP_ACT_ERRNO"}] if applies else [])


def test_all_shapes_of_rules_are_resolved() -> None:
    argument = {"index": 1, "value": 2**64 - 1, "op": "SCMP_CMP_EQ"}
    rule = {"name": "kill", "names": [], "action": "SCMP_ACT_ERRNO", "errnoRet": 5, "args": [argument]}
    assert _rules(rule | {"comment": "x"}) == [
        {"names": ["kill"], "action": "SCMP_ACT_ERRNO", "errnoRet": 5, "args": [argument | {"valueTwo": 0}]}
    ]
    assert _rules({"names": ["kill"], "action": "SCMP_ACT_ALLOW"}) == [], "as the default does"
    other = {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["kill"], "action": "SCMP_ACT_ERRNO"}]}
    assert _resolved(other)["syscalls"] == []
    assert len(_resolved(other | {"defaultErrnoRet": 38})["syscalls"]) == 1
    assert _resolved(ALLOW_ALL)["architectures"] == ["SCMP_ARCH_X86_64"]
    named = ALLOW_ALL | {"architectures": ["SCMP_ARCH_X86"], "flags": ["SECCOMP_FILTER_FLAG_LOG"]}
    assert _resolved(named)["architectures"] == ["SCMP_ARCH_X86"]
    assert _resolved(named)["flags"] == ["SECCOMP_FILTER_FLAG_LOG"]


BROKEN: list[object] = [
    [], "x", None, {}, {"defaultAction": "ALLOW"}, {"defaultAction": 5}, ALLOW_ALL | {"sycalls": []},
    ALLOW_ALL | {"syscalls": {}}, ALLOW_ALL | {"syscalls": [5]}, ALLOW_ALL | {"syscalls": [{"names": ["a"]}]},
    ALLOW_ALL | {"syscalls": [{"names": ["A b"], "action": "SCMP_ACT_ERRNO"}]},
    ALLOW_ALL | {"syscalls": [{"names": [["a"]], "action": "SCMP_ACT_ERRNO"}]},
    ALLOW_ALL | {"syscalls": [{"names": ["a"], "action": "SCMP_ACT_ERRNO", "errnoRet": -1}]},
    ALLOW_ALL | {"syscalls": [{"names": ["a"], "action": "SCMP_ACT_ERRNO", "errnoRet": True}]},
    ALLOW_ALL | {"syscalls": [{"names": ["a"], "action": "SCMP_ACT_ERRNO", "args": [{}]}]},
    ALLOW_ALL | {"syscalls": [{"names": ["a"], "action": "SCMP_ACT_ERRNO", "includes": {"cap": []}}]},
    ALLOW_ALL | {"syscalls": [{"names": ["a"], "action": "SCMP_ACT_ERRNO", "includes": {"minKernel": "x"}}]},
    ALLOW_ALL | {"syscalls": [{}] * 3000}, ALLOW_ALL | {"architectures": ["x86"]},
    ALLOW_ALL | {"flags": ["SECCOMP_FILTER_FLAG_NEW_LISTENER"]},
    ALLOW_ALL | {"architectures": ["SCMP_ARCH_X86"], "archMap": [{"architecture": "SCMP_ARCH_X86"}]},
]  # fmt: skip


@pytest.mark.parametrize("profile", BROKEN)
def test_broken_profiles_are_refused(profile: object) -> None:
    with pytest.raises(Invalid):
        _resolved(profile)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 100_000, b"9" * 10_000])
def test_malformed_json_profiles_are_refused(text: bytes) -> None:
    with pytest.raises(Invalid):
        resolve_profile(text, "p", X86)


def test_profiles_with_notifications_have_nobody_to_answer() -> None:
    notify = {"names": ["mount"], "action": "SCMP_ACT_NOTIFY"}
    for profile in (ALLOW_ALL | {"syscalls": [notify]}, ALLOW_ALL | {"listenerPath": "/x"}):
        with pytest.raises(Unsupported):
            _resolved(profile)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["defaultAction", "syscalls", "names", "action", "args", "includes", "caps", "archMap"]
            ),
            inner | st.sampled_from(["SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"]),
        )
    ),
    max_leaves=20,
)


@given(_JSON)
def test_odd_profiles_are_resolved_or_refused(profile: object) -> None:
    try:
        made = _resolved(profile)
    except Fault:
        return
    assert made["defaultAction"].startswith("SCMP_ACT_") and made["architectures"]


def _local(path: object) -> Profile:
    return Profile(profile_type=Profile.Localhost, localhost_ref=str(path))


def test_profiles_of_the_host_are_read() -> None:
    content = json.dumps(ALLOW_ALL).encode()
    for security in (
        Security(seccomp=_local("/p")),
        Security(seccomp=_local("localhost//p")),
        Security(seccomp_profile_path="localhost//p"),
    ):
        assert local_profile(security) == "/p"
        made = seccomp(security, [], "x86_64", content)
        assert made is not None and made.profile["defaultAction"] == "SCMP_ACT_ALLOW" and not made.program
    with pytest.raises(Invalid, match="seccomp profile '/p'"):
        seccomp(Security(seccomp=_local("/p")), [], "x86_64", b"{")
    with pytest.raises(Invalid, match="not a clean path"):
        local_profile(Security(seccomp=_local("/../p")))
    assert local_profile(Security(seccomp=Profile())) == local_profile(Security()) == ""


def test_unconfined_and_privileged_containers_have_no_seccomp_filter() -> None:
    for security in (
        Security(),
        Security(seccomp=Profile(profile_type=Profile.Unconfined)),
        Security(seccomp_profile_path="unconfined"),
        Security(privileged=True, seccomp=_local("/nowhere")),
    ):
        assert seccomp(security, []) is None
    assert seccomp(Security(seccomp_profile_path="runtime/default"), []) is not None
    unconfined = Profile(profile_type=Profile.Unconfined)
    assert seccomp(Security(seccomp=unconfined, seccomp_profile_path="runtime/default"), []) is None
    with pytest.raises(Unsupported, match="x86_64 and aarch64"):
        seccomp(Security(seccomp=Profile()), [], "sparc")


def _spec(target_pid: int = 0, **fields: Any) -> dict[str, Any]:
    config = container_config(linux=cri.LinuxContainerConfig(security_context=Security(**fields)))
    first = process(config, IMAGE, User(), "host", 1024)
    return dict(spec("c" * 64, config, first, ContainerDefaults(), target_pid=target_pid))


def _shm(made: dict[str, Any]) -> dict[str, Any]:
    [mount] = [each for each in made["mounts"] if each["destination"] == "/dev/shm"]
    assert isinstance(mount, dict)
    return mount


@pytest.mark.parametrize("mode", [cri.POD, cri.NODE])
def test_ipc_of_the_pod_is_shared(mode: cri.NamespaceMode.ValueType) -> None:
    made = _spec(namespace_options=cri.NamespaceOption(ipc=mode, pid=mode))
    assert (_shm(made)["type"], _shm(made)["source"]) == ("bind", "/dev/shm")
    assert sorted(each["type"] for each in made["linux"]["namespaces"]) == ["cgroup", "mount"]


def test_a_container_gets_its_own_ipc() -> None:
    made = _spec(namespace_options=cri.NamespaceOption(ipc=cri.CONTAINER))
    assert _shm(made)["type"] == "tmpfs" and "size=67108864" in _shm(made)["options"]
    assert sorted(each["type"] for each in made["linux"]["namespaces"]) == ["cgroup", "ipc", "mount"]


def test_processes_of_another_container_are_joined() -> None:
    options = cri.NamespaceOption(pid=cri.TARGET, target_id="x")
    made = _spec(target_pid=77, namespace_options=options)
    assert {"type": "pid", "path": "/proc/77/ns/pid"} in made["linux"]["namespaces"]


def test_privileged_is_everything_the_zone_has() -> None:
    dropped = cri.Capability(drop_capabilities=["ALL"])
    made = _spec(privileged=True, masked_paths=["/x"], readonly_paths=["/y"], capabilities=dropped)
    assert len(made["process"]["capabilities"]["effective"]) == len(ALL)
    assert made["linux"]["maskedPaths"] == made["linux"]["readonlyPaths"] == []
    assert made["linux"]["resources"]["devices"] == [{"allow": True, "access": "rwm"}]
    mounts = {mount["destination"]: mount["options"] for mount in made["mounts"]}
    assert "rw" in mounts["/sys"] and "rw" in mounts["/sys/fs/cgroup"]
    plain = _spec()
    assert plain["linux"]["resources"]["devices"] == [{"allow": False, "access": "rwm"}]


def test_the_default_profile_is_compiled_once_for_each_set_of_capabilities() -> None:
    machine = platform.machine()
    made = [seccomp(Security(seccomp=Profile()), granted, machine) for granted in ([], [], ["CAP_SYS_ADMIN"])]
    assert made[0] is made[1] and made[0] is not None and made[2] is not None
    programs = [base64.b64decode(one.program, validate=True) for one in (made[0], made[2])]
    # struct sock_filter has eight bytes; a filter has at most 4096 of them.
    assert all(program and len(program) % 8 == 0 and len(program) <= 8 * 4096 for program in programs)
    assert programs[0] != programs[1]
    config = container_config()
    oci = spec("c" * 64, config, process(config, IMAGE, User(), "h", 1024), ContainerDefaults(), made[0])
    assert oci["annotations"] == {"run.oci.seccomp_bpf_data": made[0].program}


def test_a_missing_or_failing_libseccomp_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    profile: dict[str, Any] = {"defaultAction": "SCMP_ACT_ALLOW", "architectures": [], "syscalls": []}

    class Failing:
        def seccomp_init(self, action: int) -> None:
            """Fail as without memory."""

        def seccomp_release(self, made: object) -> None:
            raise AssertionError("what was never made was released")

    monkeypatch.setattr(libseccomp, "_library", Failing)
    with pytest.raises(Broken, match="libseccomp makes no filter"):
        compiled(profile)
    monkeypatch.undo()

    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(Broken, match="cannot open") as raised:
        libseccomp._library.__wrapped__()
    assert raised.value.hint == "install libseccomp2"


def test_invalid_seccomp_profile_is_not_compiled() -> None:
    fine: dict[str, Any] = {"defaultAction": "SCMP_ACT_ALLOW", "architectures": [], "syscalls": []}
    for wrong, words in (
        ({"defaultAction": "SCMP_ACT_TRAP"}, "SCMP_ACT_TRAP"),
        ({"architectures": ["SCMP_ARCH_NONE"]}, "SCMP_ARCH_NONE"),
        ({"syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW"}]}, "read"),
    ):
        with pytest.raises(Broken, match=words):
            compiled(fine | wrong)
    assert compiled(fine | {"syscalls": [{"names": ["no_such_call"], "action": "SCMP_ACT_ERRNO"}]})
