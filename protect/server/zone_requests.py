"""Reads and checks protect.v1 requests about zones: sizes, modes, kernels."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from daemonkit.faults import Invalid, Refused
from protect.config import DEFAULT_PROFILE, SCRATCH_LEAST, Profile, ProtectdConfig
from protect.model import checks
from protect.model.domain.shares import CPU_PERCENT, MOST_DISK_RATE, WEIGHTS, CpuShares, DiskRates
from protect.model.room.modes import (
    WantedMode,
    choose,
    refuse_impossible_label,
    refuse_impossible_mode,
    refuse_impossible_rates,
)
from protect.model.toolstack import Capabilities, DomainKernel
from protect.model.zone import MemoryPolicy, ZoneIdMapping, ZoneSpec
from protect.server import device_requests, translate
from protect.zones.room.reservations import ReservedSize
from protect.zones.size.resize import ZoneSize
from xenpod_proto.protect.v1 import protect_pb2 as pb

_MIB = 1 << 20
_SHUTDOWN = (1.0, 3600.0)
"""Bounds of its deadline, in seconds."""
_MOST_CAP = 1024 * CPU_PERCENT
"""That of a zone of all the vCPUs that a profile can allow."""


def uuid(operation: str, text: str) -> UUID:
    """Read the uuid of a domain."""
    try:
        return UUID(text)
    except ValueError:
        raise Invalid(operation, checks.printable(text, 80), "it is not a uuid") from None


def shutdown_seconds(deadline_ns: int) -> float:
    """Read the deadline of a shutdown."""
    seconds = deadline_ns / 1e9
    if not _SHUTDOWN[0] <= seconds <= _SHUTDOWN[1]:
        shortest, longest = _SHUTDOWN
        raise Invalid(
            "shut zones down", "", f"a deadline of {seconds:g} s is not {shortest:g} to {longest:g} s"
        )
    return seconds


def zone_spec(
    config: ProtectdConfig,
    request: pb.CreateZoneRequest,
    capabilities: Capabilities,
    reserved: ReservedSize | None = None,
) -> ZoneSpec:
    """Read the spec of a zone; its mode is one that the host can run, its size the pod's reserved one."""
    operation = "create zone"
    zone_id = checks.identifier(operation, "zone", request.id)
    profile = config.profile(request.profile)
    if request.interfaces > 1:
        raise Invalid(operation, zone_id, f"{request.interfaces} interfaces are more than 1")
    if reserved:
        reserved.check_bounds(operation, zone_id, request.memory_bound_bytes, request.vcpus_bound)
    memory, vcpus = _size(operation, zone_id, profile, request.resources, reserved)
    if config.memory.reservations_only and not (reserved and reserved.memory_bytes):
        cause = "nothing is reserved for its pod, and memory.reservations_only of protectd.toml is set"
        raise Refused(operation, zone_id, cause, "give the pod a resource claim")
    wanted = _wanted(operation, zone_id, profile, request)
    mode = choose(wanted, capabilities, own_kernel=not request.HasField("kernel"))
    refuse_impossible_mode(operation, zone_id, mode, capabilities)
    seclabel = checks.seclabel(operation, request.seclabel)
    refuse_impossible_label(operation, zone_id, seclabel, capabilities)
    most = _most(operation, zone_id, profile, request, memory, vcpus)
    return ZoneSpec(
        id=zone_id,
        name=checks.name(operation, request.name),
        hostname=checks.hostname(operation, request.hostname),
        profile=request.profile or DEFAULT_PROFILE,
        memory_bytes=memory,
        vcpus=vcpus,
        mode=mode,
        interfaces=request.interfaces,
        netns=checks.path(operation, "namespace", request.netns_path) if request.netns_path else "",
        sysctls=checks.sysctls(operation, request.sysctls),
        id_mapping=_id_mapping(operation, zone_id, request.id_mapping)
        if request.HasField("id_mapping")
        else None,
        kernel=_kernel(operation, zone_id, request.kernel) if request.HasField("kernel") else None,
        shares=size(operation, zone_id, request.resources).shares(CpuShares()),
        scratch_bytes=_scratch(operation, zone_id, profile, request),
        seclabel=seclabel,
        memory_max_bytes=most[0],
        vcpus_max=most[1],
        memory_policy=_policy(operation, zone_id, request.resources) or MemoryPolicy.STATIC,
        memory_min_bytes=min(request.resources.memory_min_bytes or memory, memory),
        cpupool=checks.name(operation, request.cpupool),
        device_names=device_requests.names(
            operation, zone_id, [*request.devices, *(reserved.devices if reserved else ())]
        ),
        reservations=reserved.reservations if reserved else (),
        disk_rates=disk_rates(operation, zone_id, config, request.disk_rates, capabilities),
    )


def _wanted(operation: str, zone_id: str, profile: Profile, request: pb.CreateZoneRequest) -> WantedMode:
    if request.mode == pb.ZONE_MODE_UNSPECIFIED:
        return profile.mode
    for wanted, mode in translate.WANTED_MODES.items():
        if request.mode == mode:
            return wanted
    raise Invalid(operation, zone_id, f"mode {request.mode}, which is none")


def _size(
    operation: str, zone_id: str, profile: Profile, asked: pb.ZoneResources, reserved: ReservedSize | None
) -> tuple[int, int]:
    memory, vcpus = asked.memory_bytes, asked.vcpus
    if reserved:
        memory, vcpus = reserved.fit(operation, zone_id, memory, vcpus)
    memory, vcpus = memory or profile.memory, vcpus or profile.vcpus
    if not profile.memory_min <= memory <= profile.memory_max:
        low, high = profile.memory_min / _MIB, profile.memory_max / _MIB
        cause = f"{memory / _MIB:.0f} MiB of memory are not between {low:.0f} and {high:.0f} MiB"
        raise Invalid(operation, zone_id, cause, "the profile sets the limits")
    if vcpus > profile.vcpus_max:
        cause = f"{vcpus} vCPUs are more than {profile.vcpus_max}"
        raise Invalid(operation, zone_id, cause, "the profile sets the limits")
    return memory, vcpus


def _scratch(operation: str, zone_id: str, profile: Profile, request: pb.CreateZoneRequest) -> int:
    wanted = request.scratch_bytes if request.HasField("scratch_bytes") else profile.scratch
    if wanted > profile.scratch_max or 0 < wanted < SCRATCH_LEAST:
        low, high = SCRATCH_LEAST / _MIB, profile.scratch_max / _MIB
        cause = f"a scratch disk of {wanted / _MIB:.0f} MiB is neither 0 nor {low:.0f} to {high:.0f} MiB"
        raise Invalid(operation, zone_id, cause, "scratch_max of the profile sets the limit")
    return -(-wanted // _MIB) * _MIB


def _most(
    operation: str, zone_id: str, profile: Profile, request: pb.CreateZoneRequest, memory: int, vcpus: int
) -> tuple[int, int]:
    """The maxima: as far as the bounds allow them, for a headroom; Invalid for one beyond the profile's."""
    asked = request.resources
    if asked.memory_max_bytes > profile.memory_max or asked.vcpus_max > profile.vcpus_max:
        cause = f"a maximum of {asked.memory_max_bytes / _MIB:.0f} MiB and {asked.vcpus_max} vCPUs"
        limits = f"{profile.memory_max / _MIB:.0f} MiB and {profile.vcpus_max}"
        raise Invalid(operation, zone_id, f"{cause} is beyond {limits}", "the profile sets the limits")
    most_memory = asked.memory_max_bytes or memory + min(asked.memory_headroom_bytes, profile.memory_max)
    most_vcpus = asked.vcpus_max or vcpus + min(asked.vcpus_headroom, profile.vcpus_max)
    bounds = (
        min(profile.memory_max, request.memory_bound_bytes or profile.memory_max),
        min(profile.vcpus_max, request.vcpus_bound or profile.vcpus_max),
    )
    return max(memory, min(most_memory, bounds[0])), max(vcpus, min(most_vcpus, bounds[1]))


def _policy(operation: str, zone_id: str, asked: pb.ZoneResources) -> MemoryPolicy | None:
    if asked.memory_policy == pb.MEMORY_POLICY_UNSPECIFIED:
        return None
    for policy, number in translate.MEMORY_POLICIES.items():
        if asked.memory_policy == number:
            return policy
    raise Invalid(operation, zone_id, f"memory policy {asked.memory_policy}, which is none")


def size(operation: str, zone_id: str, asked: pb.ZoneResources) -> ZoneSize:
    """What is asked for; Invalid for a weight or a cap that cannot be."""
    if asked.HasField("weight") and asked.weight not in WEIGHTS:
        raise Invalid(operation, zone_id, f"weight {asked.weight} is not 1 to {WEIGHTS[-1]}")
    if asked.cap > _MOST_CAP:
        raise Invalid(operation, zone_id, f"cap {asked.cap} is more than {_MOST_CAP} percent of a CPU")
    return ZoneSize(
        memory_bytes=asked.memory_bytes,
        vcpus=asked.vcpus,
        weight=asked.weight if asked.HasField("weight") else None,
        cap=asked.cap if asked.HasField("cap") else None,
        memory_policy=_policy(operation, zone_id, asked),
    )


def disk_rates(
    operation: str, zone_id: str, config: ProtectdConfig, asked: pb.DiskRates, capabilities: Capabilities
) -> DiskRates:
    """What the request asks for, and no more than the configuration allows.

    Refused: the request asks, and the host cannot.  For the configuration alone it has a notice.
    """
    wanted = translate.disk_rates(asked)
    if wanted.exceeds(DiskRates(*[MOST_DISK_RATE] * 4)):
        raise Invalid(operation, zone_id, f"a rate of its disks is more than {MOST_DISK_RATE}")
    refuse_impossible_rates(operation, zone_id, wanted, possible=capabilities.disk_rates)
    return wanted.within(config.limits.disk_rates) if capabilities.disk_rates else DiskRates()


def _id_mapping(operation: str, zone_id: str, asked: pb.IdMapping) -> ZoneIdMapping:
    """Read an id mapping.  Invalid: it contains id 2^32 - 1, which means none (user_namespaces(7))."""
    if not asked.length or asked.host_id + asked.length >= 2**32:
        raise Invalid(operation, zone_id, f"id mapping: {asked.length} ids from {asked.host_id}")
    return ZoneIdMapping(asked.host_id, asked.length)


def _kernel(operation: str, zone_id: str, asked: pb.ZoneKernel) -> DomainKernel:
    if not asked.image_path:
        raise Invalid(operation, zone_id, "a kernel without an image")
    files = (("initramfs", asked.initramfs_path), ("addons", asked.addons_path))
    return DomainKernel(
        name=checks.name(operation, asked.name),
        image=Path(checks.path(operation, "kernel", asked.image_path)),
        **{kind: Path(checks.path(operation, kind, path)) for kind, path in files if path},
    )
