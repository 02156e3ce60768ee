"""Finds a container's seccomp profile: none, ours, or a file of the host."""

from __future__ import annotations

import functools
import platform
from collections.abc import Iterable
from pathlib import Path

from cri.checks.fields import CREATE
from cri.checks.security import chosen, local_path
from cri.oci.seccomp_bpf import compiled
from cri.oci.seccomp_profile import MACHINES, ContainerFacts, resolve_profile
from cri.oci.values import Filter
from daemonkit.faults import Unsupported
from xenpod_proto.cri.v1 import runtime_pb2 as cri

DEFAULT = Path(__file__).with_name("seccomp-default.json")


def seccomp(
    security: cri.LinuxContainerSecurityContext,
    capabilities: Iterable[str],
    machine: str = platform.machine(),
    local: bytes = b"",
) -> Filter | None:
    """The filter; None for none.  A privileged container has none, whatever the request says.

    ``local``: the content of the ``local_profile`` file, if any.
    """
    asked = chosen(
        "seccomp", security.seccomp if security.HasField("seccomp") else None, security.seccomp_profile_path
    )
    if security.privileged or asked.profile_type == cri.SecurityProfile.Unconfined:
        return None
    if machine not in MACHINES:
        raise Unsupported(CREATE, f"seccomp on {machine!r:.40}", "zones run on x86_64 and aarch64")
    container = ContainerFacts(frozenset(capabilities), MACHINES[machine])
    if asked.profile_type == cri.SecurityProfile.RuntimeDefault:
        return _default(container)
    subject = f"seccomp profile {local_profile(security)!r:.200}"
    # Not compiled here: compiling may cost any amount, and the zone should pay.
    return Filter(resolve_profile(local, subject, container))


def local_profile(
    security: cri.LinuxContainerSecurityContext | cri.LinuxSandboxSecurityContext, operation: str = CREATE
) -> str:
    """The requested file on the host; "": none.  Invalid for a path that is not absolute and clean.

    A pod's profile applies to nothing: a zone has no pause container, and each container has its own profile.
    """
    message = security.seccomp if security.HasField("seccomp") else None
    asked = chosen("seccomp", message, security.seccomp_profile_path, operation)
    if asked.profile_type != cri.SecurityProfile.Localhost:
        return ""
    return local_path("seccomp", asked, operation)


@functools.lru_cache(maxsize=64)
def _default(container: ContainerFacts) -> Filter:
    """Our own profile for these capabilities; cached, since most containers have the same capabilities."""
    profile = resolve_profile(DEFAULT.read_bytes(), "the default seccomp profile", container)
    here = MACHINES.get(platform.machine()) == container.machine
    return Filter(profile, compiled(profile) if here else "")
