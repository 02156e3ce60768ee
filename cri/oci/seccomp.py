"""Finds a container's seccomp profile: none, ours, or a file of the host."""

from __future__ import annotations

import errno
import functools
import os
import platform
from collections.abc import Iterable
from pathlib import Path

from cri.checks.fields import CREATE, RUN
from cri.checks.security import chosen, local_path
from cri.oci.seccomp_bpf import compiled
from cri.oci.seccomp_profile import MACHINES, ContainerFacts, resolve
from cri.oci.values import Filter
from daemonkit.faults import Invalid, Refused, Unsupported
from daemonkit.host.files import open_plain
from xenpod_proto.cri.v1 import runtime_pb2 as cri

DEFAULT = Path(__file__).with_name("seccomp-default.json")
_LIMIT = 256 * 1024


def seccomp(
    security: cri.LinuxContainerSecurityContext,
    capabilities: Iterable[str],
    machine: str = platform.machine(),
) -> Filter | None:
    """The seccomp filter of a container, or None; a privileged container has none in any case."""
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
    path = local_path("seccomp", asked)
    # Not compiled here: compiling may cost any amount, and the zone should pay for it.
    return Filter(resolve(_read(path), f"seccomp profile {path!r:.200}", container))


def check_pod_seccomp(security: cri.LinuxSandboxSecurityContext) -> None:
    """Invalid or Refused for a pod's profile that cannot be read.  It applies to nothing: there is no pause
    container, and each container has its own."""
    message = security.seccomp if security.HasField("seccomp") else None
    asked = chosen("seccomp", message, security.seccomp_profile_path, RUN)
    if asked.profile_type == cri.SecurityProfile.Localhost:
        _read(local_path("seccomp", asked, RUN), RUN)


@functools.lru_cache(maxsize=64)
def _default(container: ContainerFacts) -> Filter:
    """Our own profile for these capabilities; cached, since most containers have the same few."""
    profile = resolve(DEFAULT.read_bytes(), "the default seccomp profile", container)
    here = MACHINES.get(platform.machine()) == container.machine
    return Filter(profile, compiled(profile) if here else "")


def _read(path: str, operation: str = CREATE) -> bytes:
    """Read a profile of the host; Invalid unless it is a plain file, not too large."""
    subject = f"seccomp profile {path!r:.200}"
    try:
        with open(open_plain(path, os.O_RDONLY, follow=True), "rb") as file:
            content = file.read(_LIMIT + 1)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise Invalid(operation, subject, "not a file") from None
        raise Refused(operation, subject, error.strerror or str(error), "it is read on the host") from None
    if len(content) > _LIMIT:
        raise Invalid(operation, subject, f"larger than {_LIMIT} bytes")
    return content
