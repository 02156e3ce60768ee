"""How large a pod's zone is: annotations, then CRI resources, then its handler's size, then its profile's."""

from __future__ import annotations

from collections.abc import Mapping

from cri.checks.fields import PREFIX
from cri.checks.quantity import quantity
from cri.config import HandlerConfig
from cri.sandbox.kernel import ANNOTATION as KERNEL
from daemonkit.faults import Invalid
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

MEMORY = "xenpod.dev/memory"
VCPUS = "xenpod.dev/vcpus"
_KNOWN = (MEMORY, VCPUS, KERNEL)
_MAX_MEMORY = 2**50
_MAX_VCPUS = 1024


def zone_resources(
    config: cri.PodSandboxConfig, memory_overhead: int, handler: HandlerConfig | None = None
) -> pb.ZoneResources:
    """The zone's size; 0 leaves it to protectd's profile.  Invalid: an annotation that cannot be read.

    ``memory_overhead``, in bytes, is what the zone's kernel takes when the request has no overhead.
    Without ``handler`` only what the request itself says counts.
    """
    usual = handler or HandlerConfig()
    notes = config.annotations
    _refuse_unknown(notes)
    memory = _annotation(notes, MEMORY, _MAX_MEMORY) or _memory(config.linux, memory_overhead) or usual.memory
    vcpus = _annotation(notes, VCPUS, _MAX_VCPUS) or _vcpus(config.linux) or usual.vcpus
    return pb.ZoneResources(memory_bytes=memory, vcpus=vcpus)


def _refuse_unknown(notes: Mapping[str, str]) -> None:
    for key in notes:
        if key.startswith(PREFIX) and key not in _KNOWN:
            raise Invalid("read annotation", key[:200], "unknown", f"known here: {', '.join(_KNOWN)}")


def _annotation(notes: Mapping[str, str], key: str, limit: int) -> int:
    if key not in notes:
        return 0
    try:
        value = quantity(notes[key], limit)
        if key == VCPUS and not notes[key].isdigit():
            raise ValueError(f"{notes[key]!r:.80} is not a whole number")
    except ValueError as error:
        raise Invalid("read annotation", key, str(error), 'e.g. "512Mi" or "2"') from None
    return value


def _memory(linux: cri.LinuxPodSandboxConfig, memory_overhead: int) -> int:
    limit = linux.resources.memory_limit_in_bytes
    if limit <= 0:
        return 0
    overhead = linux.overhead.memory_limit_in_bytes
    return min(limit + (overhead if overhead > 0 else memory_overhead), _MAX_MEMORY)


def _vcpus(linux: cri.LinuxPodSandboxConfig) -> int:
    resources = linux.resources
    if resources.cpu_quota <= 0 or resources.cpu_period <= 0:
        return 0
    return min(max(-(-resources.cpu_quota // resources.cpu_period), 1), _MAX_VCPUS)
