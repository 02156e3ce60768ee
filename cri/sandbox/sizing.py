"""The size of a pod's zone: by annotations, else CRI resources, else its handler, else its profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cri.checks.fields import MAX_MEMORY_BYTES, MAX_VCPUS, RUN, memory_limit
from cri.config import MEMORY, VCPUS, HandlerConfig, HandlerMemoryPolicy, Reserve
from daemonkit.faults import Denied, Invalid
from daemonkit.quantity import within
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

POLICIES: Mapping[HandlerMemoryPolicy, pb.MemoryPolicy.ValueType] = {
    HandlerMemoryPolicy.STATIC: pb.MEMORY_POLICY_STATIC,
    HandlerMemoryPolicy.DYNAMIC: pb.MEMORY_POLICY_DYNAMIC,
}
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class _Dimension:
    """Memory or vCPUs of a size; 0: not given, or left to the profile.

    ``noted``: by the pod's annotation ``key``; ``asked``: by its CRI resources; ``least`` and ``most``:
    bounds by ``setting`` and ``setting``_min or ``setting``_max of its handler.
    """

    key: str
    setting: str
    noted: int
    asked: int
    usual: int
    least: int
    most: int

    @property
    def size(self) -> int:
        return self.noted or self.asked or self.usual

    def say(self, number: int) -> str:
        return f"{number / _MIB:.0f} MiB of memory" if self.key == MEMORY else f"{number} vCPUs"


def zone_resources(
    config: cri.PodSandboxConfig, memory_overhead: int, handler: HandlerConfig | None = None
) -> pb.ZoneResources:
    """The zone's size; 0 leaves the size to protectd's profile.  Invalid: an unreadable annotation.

    ``memory_overhead``: bytes for the zone's kernel if the request has no overhead.  Without ``handler`` only
    the request counts.
    """
    memory, vcpus = _dimensions(config, memory_overhead, handler or HandlerConfig())
    if handler is None:
        return pb.ZoneResources(memory_bytes=memory.size, vcpus=vcpus.size)
    resources = pb.ZoneResources(
        memory_bytes=memory.size,
        vcpus=vcpus.size,
        memory_headroom_bytes=_headroom(memory, handler.memory_headroom),
        vcpus_headroom=_headroom(vcpus, handler.vcpus_headroom),
        memory_policy=POLICIES[handler.memory_policy],
    )
    if handler.reserve is Reserve.REQUEST:
        _begin_small(resources, handler.memory)
    return resources


def usual_memory(handler: HandlerConfig, host: pb.InfoResponse) -> int:
    """Bytes of memory of a zone whose pod has no limit; 0: protectd does not say."""
    profiles = [one.memory_bytes for one in host.profile_bounds if one.name == handler.profile]
    return handler.memory or next(iter(profiles), 0)


def _headroom(one: _Dimension, headroom: int) -> int:
    """Possible growth of the zone within its handler's bounds."""
    return min(headroom, max(0, one.most - one.size)) if one.most and one.size else headroom


def _begin_small(resources: pb.ZoneResources, begin: int) -> None:
    """Have the zone begin with ``begin`` bytes, and grow with its use to its full size."""
    headroom = max(0, resources.memory_bytes - begin) + resources.memory_headroom_bytes
    resources.memory_bytes = min(begin, resources.memory_bytes)
    resources.memory_headroom_bytes = headroom
    resources.memory_policy = pb.MEMORY_POLICY_DYNAMIC


def check_size(config: cri.PodSandboxConfig, memory_overhead: int, name: str, handler: HandlerConfig) -> None:
    """Check that the handler ``name`` allows the size.

    Denied: an annotation above the pod's own limits or beyond the handler's bounds; Invalid: an unreadable
    annotation, or limits beyond the handler's bounds.
    """
    for one in _dimensions(config, memory_overhead, handler):
        _check_limits(config.metadata.name, one, name)
        _check_bounds(config.metadata.name, one, name)


def _check_limits(pod: str, one: _Dimension, handler: str) -> None:
    if 0 < one.asked < one.noted:
        wanted, limit = one.say(one.noted), one.say(one.asked)
        cause = f"annotation {one.key}: {wanted} are more than the {limit} of the pod's limits"
        hint = f"handlers.{handler}.annotations in cri.toml lets it lower limits, not raise them"
        raise Denied(RUN, pod, cause, hint)


def _check_bounds(pod: str, one: _Dimension, handler: str) -> None:
    if one.most and one.size > one.most:
        setting, bound, beyond = f"handlers.{handler}.{one.setting}_max", one.most, "more"
    elif 0 < one.size < one.least:
        setting, bound, beyond = f"handlers.{handler}.{one.setting}_min", one.least, "less"
    else:
        return
    cause = f"{one.say(one.size)} are {beyond} than {setting} of cri.toml, {one.say(bound)}"
    if one.noted:
        raise Denied(RUN, pod, f"annotation {one.key}: {cause}")
    raise Invalid(RUN, pod, f"its limits: {cause}")


def _dimensions(
    config: cri.PodSandboxConfig, overhead: int, handler: HandlerConfig
) -> tuple[_Dimension, _Dimension]:
    return (
        _Dimension(
            key=MEMORY,
            setting="memory",
            noted=_annotation(config, MEMORY, MAX_MEMORY_BYTES),
            asked=_memory(config.linux, overhead),
            usual=handler.memory,
            least=handler.memory_min,
            most=handler.memory_max,
        ),
        _Dimension(
            key=VCPUS,
            setting="vcpus",
            noted=_annotation(config, VCPUS, MAX_VCPUS),
            asked=_vcpus(config.linux),
            usual=handler.vcpus,
            least=0,
            most=handler.vcpus_max,
        ),
    )


def _annotation(config: cri.PodSandboxConfig, key: str, limit: int) -> int:
    notes = config.annotations
    if key not in notes:
        return 0
    try:
        value = within(notes[key], limit)
        if key == VCPUS and not notes[key].isdigit():
            raise ValueError(f"{notes[key]!r:.80} is not a whole number")
    except ValueError as error:
        raise Invalid("read annotation", key, str(error), 'e.g. "512Mi" or "2"') from None
    return value


def _memory(linux: cri.LinuxPodSandboxConfig, memory_overhead: int) -> int:
    limit = memory_limit(linux.resources)
    if not limit:
        return 0
    overhead = linux.overhead.memory_limit_in_bytes
    return min(limit + (overhead if overhead > 0 else memory_overhead), MAX_MEMORY_BYTES)


def _vcpus(linux: cri.LinuxPodSandboxConfig) -> int:
    resources = linux.resources
    if resources.cpu_quota <= 0 or resources.cpu_period <= 0:
        return 0
    return min(max(-(-resources.cpu_quota // resources.cpu_period), 1), MAX_VCPUS)
