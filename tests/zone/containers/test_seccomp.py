"""Filters of system calls, compiled by the host, equal crun's filters."""

from __future__ import annotations

import base64
import json
import platform
from pathlib import Path
from typing import Any

import pytest

from cri.oci.capabilities import ALL, DEFAULT
from cri.oci.seccomp import seccomp
from cri.oci.seccomp_bpf import ANNOTATION, compiled
from cri.oci.values import Filter
from tests.support.agent.zone import Zone
from tests.support.agent.zone_client import Client
from tests.support.agent.zone_specs import creation
from xenpod_proto.channel.v1 import channel_pb2 as pb
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = pytest.mark.root


def default_filter(*capabilities: str) -> Filter:
    security = cri.LinuxContainerSecurityContext(seccomp=cri.SecurityProfile())
    made = seccomp(security, [f"CAP_{name}" for name in capabilities])
    assert made is not None
    return made


def filtered(container: str, script: str, profile: Any, program: str = "") -> pb.CreateContainer:
    request = creation(container, "sh", "-c", script)
    config = json.loads(request.config_json)
    config["linux"]["seccomp"] = profile
    config["annotations"] = {ANNOTATION: program} if program else {}
    request.config_json = json.dumps(config).encode()
    return request


def program_of(zone: Zone, container: str) -> bytes:
    """The program that crun has given the kernel."""
    return Path(f"/proc/{zone.pid}/root/run/crun/{container}/seccomp.bpf").read_bytes()


@pytest.mark.parametrize("capabilities", [(), DEFAULT, (*DEFAULT, "SYS_ADMIN"), ALL])
def test_compiled_filter_equals_the_filter_of_crun(
    zone: Zone, client: Client, capabilities: tuple[str, ...]
) -> None:
    made = default_filter(*capabilities)
    assert made.program and default_filter(*capabilities) is made
    client.call(create_container=filtered("c1", "true", made.profile))
    assert program_of(zone, "c1") == base64.b64decode(made.program)


def test_arguments_and_errors_are_as_crun_makes_them(zone: Zone, client: Client) -> None:
    """All operators, two arguments, and unknown names."""
    comparisons = [
        {"index": n % 6, "value": 0x1FF, "valueTwo": n % 2 * 0x40, "op": f"SCMP_CMP_{operator}"}
        for n, operator in enumerate(("NE", "LT", "LE", "EQ", "GE", "GT", "MASKED_EQ"))
    ]
    rules = [
        {"names": [name, "no_such_call"], "action": "SCMP_ACT_ERRNO", "errnoRet": 70 + n, "args": [argument]}
        for n, (name, argument) in enumerate(
            zip(("chmod", "chown", "fchmod", "fchown", "lchown", "mkdir", "rmdir"), comparisons, strict=True)
        )
    ]
    rules += [
        {"names": ["link"], "action": "SCMP_ACT_ERRNO", "args": comparisons[:2]},
        {"names": ["mkdirat"], "action": "SCMP_ACT_ERRNO"},
    ]
    machine = {"x86_64": ["X86_64", "X86"], "aarch64": ["AARCH64", "ARM"]}[platform.machine()]
    profile = {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [f"SCMP_ARCH_{name}" for name in machine],
        "syscalls": rules,
    }
    client.call(create_container=filtered("c1", "true", profile))
    assert program_of(zone, "c1") == base64.b64decode(compiled(profile))


def test_compiled_program_filters_in_place_of_the_profile(zone: Zone, client: Client) -> None:
    """The program counts, not the profile beside the program."""
    allowed = {"defaultAction": "SCMP_ACT_ALLOW", "architectures": [], "syscalls": []}
    denied = {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 16}
    program = compiled({**allowed, "syscalls": [denied]})
    client.call(create_container=filtered("c1", "mkdir /tmp/a; cat /proc/self/status", allowed, program))
    assert program_of(zone, "c1") == base64.b64decode(program)
    stdout, stderr = said(client, "c1")
    assert "resource busy" in stderr and "\nSeccomp:\t2\n" in stdout


def said(client: Client, container: str) -> tuple[str, str]:
    created = client.listed()[container, ""].created
    client.call(start_container=pb.StartContainer(id=container))
    client.exited(container)
    streams = (created.stdout_stream, created.stderr_stream)
    stdout, stderr = (client.output(stream).decode() for stream in streams)
    return stdout, stderr
