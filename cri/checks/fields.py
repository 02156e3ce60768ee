"""Shared checks of pod and container requests; each raises Invalid with the field's name."""

from __future__ import annotations

import re
from collections.abc import Mapping

from daemonkit.faults import Invalid
from xenpod_proto.cri.v1 import runtime_pb2 as cri

CREATE = "create container"
RUN = "run pod sandbox"
"""Operations that refuse a request, by their names in faults."""

MAX_MEMORY_BYTES = 2**50
MAX_VCPUS = 1024
"""Larger annotations are clamped, and a larger limit is no limit; no host has this much."""
PREFIX = "xenpod.dev/"
"""Prefix of our own annotations."""
ELSEWHERE = "leave it out, or run the pod on a node with another runtime"
"""The hint if only the host's own kernel could satisfy the request."""

# Names go into CNI arguments, log lines and file names, and must not break out of any of them.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?")
_HOSTNAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,62}[A-Za-z0-9])?")
_ANNOTATIONS_BYTES = 256 * 1024  # bytes of all annotations, from Kubernetes


def memory_limit(resources: cri.LinuxContainerResources) -> int:
    """The memory limit in bytes; 0: no limit.

    For a pod without a limit the kubelet reports the limit of its control group: about 2**63 (cgroup v1).
    """
    limit = resources.memory_limit_in_bytes
    return limit if 0 < limit <= MAX_MEMORY_BYTES else 0


def check_name(operation: str, field: str, value: str, *, required: bool = True) -> None:
    """Check a name: at most 253 letters, digits and ``_.-``, with a letter or digit at both ends."""
    if not value and not required:
        return
    if not _NAME.fullmatch(value):
        raise Invalid(operation, f"{field} {value!r:.80}", "not a name: want letters, digits, '-', '_', '.'")


def check_hostname(operation: str, value: str) -> None:
    """Check a host name: at most 64 characters (HOST_NAME_MAX, sethostname(2)), or ""."""
    if value and not _HOSTNAME.fullmatch(value):
        raise Invalid(operation, f"hostname {value!r:.80}", "not a host name of at most 64 characters")


def check_map(operation: str, field: str, values: Mapping[str, str]) -> None:
    """Check labels or annotations: no empty key, all together at most 256 KiB."""
    if "" in values:
        raise Invalid(operation, field, "an empty key")
    if sum(len(key.encode()) + len(value.encode()) for key, value in values.items()) > _ANNOTATIONS_BYTES:
        raise Invalid(operation, field, f"larger than {_ANNOTATIONS_BYTES} bytes together")


def check_path(operation: str, field: str, value: str, *, absolute: bool) -> None:
    """Check a path: no NUL, no ``..``, at most 4095 bytes."""
    parts = value.split("/")
    if "\0" in value or ".." in parts or len(value.encode()) > 4095:
        raise Invalid(operation, f"{field} {value!r:.80}", "not a clean path")
    if absolute is not value.startswith("/"):
        raise Invalid(
            operation, f"{field} {value!r:.80}", f"not {'an absolute' if absolute else 'a relative'} path"
        )
