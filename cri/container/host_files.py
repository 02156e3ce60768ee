"""Reads and makes the host's files that requests name, always through ``HostPaths``.

protectd handles volumes and logs.
"""

from __future__ import annotations

import errno

from cri.checks.fields import CREATE
from daemonkit.faults import Broken, Exhausted, Invalid, Refused
from daemonkit.host.disk_space import is_full
from daemonkit.host.paths import HostPaths
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_MAKE = "make log directory"
_RESOLV = "/etc/resolv.conf"
_RESOLV_BYTES = 64 * 1024
_PROFILE_BYTES = 256 * 1024


def owner(pod: cri.PodSandboxMetadata) -> str:
    """The owner of a path look-up: the pod, by a name that later sandboxes of the pod share."""
    return f"{pod.namespace}/{pod.name}"


async def make_log_directory(paths: HostPaths, pod: cri.PodSandboxMetadata, directory: str) -> None:
    """Make ``directory`` and its parents (0755); "" makes none.

    The kubelet makes and removes its own directories; other callers leave that to us.
    """
    if not directory:
        return
    try:
        await paths.make_directory(owner(pod), directory)
    except OSError as error:
        cause = error.strerror or str(error)
        if is_full(error):
            raise Exhausted(_MAKE, directory, cause, "free some space") from None
        raise Invalid(_MAKE, directory, cause) from None


async def seccomp_profile(
    paths: HostPaths, pod: cri.PodSandboxMetadata, path: str, operation: str = CREATE
) -> bytes:
    """A profile of the host; b"" for the path "".  Invalid: not a plain file, or too large."""
    if not path:
        return b""
    subject = f"seccomp profile {path!r:.200}"
    try:
        content = await paths.read(owner(pod), path)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise Invalid(operation, subject, "not a file") from None
        raise Refused(operation, subject, error.strerror or str(error), "it is read on the host") from None
    if len(content) > _PROFILE_BYTES:
        raise Invalid(operation, subject, f"larger than {_PROFILE_BYTES} bytes")
    return content


async def host_resolv(paths: HostPaths, pod: cri.PodSandboxConfig, path: str = _RESOLV) -> bytes:
    """The host's resolv.conf(5) for a pod without a DNS configuration, b"" for others."""
    if pod.HasField("dns_config"):
        return b""
    try:
        return (await paths.read(owner(pod.metadata), path))[:_RESOLV_BYTES]
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise Broken("read", path, error.strerror or str(error)) from None
