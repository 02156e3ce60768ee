"""Makes checked values from protect.v1 requests about zones."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from daemonkit.faults import Invalid
from protect.model import checks
from protect.model.capacity.modes import WantedMode
from protect.model.domain.shares import CPU_PERCENT, CPU_WEIGHT, MOST_DISK_RATE, WEIGHTS, CpuShares, DiskRates
from protect.model.toolstack import DomainKernel
from protect.model.zone import MemoryPolicy, ZoneIdMapping
from protect.server import translate
from protect.zones.admission import Resources, ZoneRequest
from protect.zones.size.resize import ZoneSize
from xenpod_proto.protect.v1 import protect_pb2 as pb

_CREATE = "create zone"
_SHUTDOWN_SECONDS = (1.0, 3600.0)
"""Bounds of the deadline of a shutdown, in seconds."""
_MOST_CAP = 1024 * CPU_PERCENT
"""Cap of a zone with the most vCPUs that a profile can allow."""


def uuid(operation: str, text: str) -> UUID:
    """Read the uuid of a domain."""
    try:
        return UUID(text)
    except ValueError:
        raise Invalid(operation, checks.printable(text, 80), "it is not a uuid") from None


def shutdown_seconds(deadline_ns: int) -> float:
    """Read the deadline of a shutdown."""
    seconds = deadline_ns / 1e9
    if not _SHUTDOWN_SECONDS[0] <= seconds <= _SHUTDOWN_SECONDS[1]:
        shortest, longest = _SHUTDOWN_SECONDS
        raise Invalid(
            "shut zones down", "", f"a deadline of {seconds:g} s is not {shortest:g} to {longest:g} s"
        )
    return seconds


def zone_request(request: pb.CreateZoneRequest) -> ZoneRequest:
    """Read a request for a zone.  Invalid: no profile and no host could allow a field."""
    zone_id = checks.identifier(_CREATE, "zone", request.id)
    if request.interfaces > 1:
        raise Invalid(_CREATE, zone_id, f"{request.interfaces} interfaces are more than 1")
    asked = request.resources
    return ZoneRequest(
        id=zone_id,
        name=checks.name(_CREATE, request.name),
        hostname=checks.hostname(_CREATE, request.hostname),
        profile=request.profile,
        pod_uid=request.pod_uid,
        resources=Resources(asked.memory_bytes, asked.vcpus),
        most=Resources(asked.memory_max_bytes, asked.vcpus_max),
        headroom=Resources(asked.memory_headroom_bytes, asked.vcpus_headroom),
        bound=Resources(request.memory_bound_bytes, request.vcpus_bound),
        memory_min_bytes=asked.memory_min_bytes,
        memory_policy=_policy(_CREATE, zone_id, asked) or MemoryPolicy.STATIC,
        shares=CpuShares(_weight(_CREATE, zone_id, asked) or CPU_WEIGHT, _cap(_CREATE, zone_id, asked) or 0),
        disk_rates=disk_rates(_CREATE, zone_id, request.disk_rates),
        scratch_bytes=request.scratch_bytes if request.HasField("scratch_bytes") else None,
        mode=_mode(zone_id, request.mode),
        kernel=_kernel(zone_id, request.kernel) if request.HasField("kernel") else None,
        seclabel=checks.seclabel(_CREATE, request.seclabel),
        cpupool=checks.name(_CREATE, request.cpupool),
        interfaces=request.interfaces,
        netns=checks.path(_CREATE, "namespace", request.netns_path) if request.netns_path else "",
        sysctls=checks.sysctls(_CREATE, request.sysctls),
        id_mapping=_id_mapping(zone_id, request.id_mapping) if request.HasField("id_mapping") else None,
        device_names=tuple(checks.device_name(_CREATE, name) for name in request.devices),
    )


def _mode(zone_id: str, asked: pb.ZoneMode.ValueType) -> WantedMode | None:
    if asked == pb.ZONE_MODE_UNSPECIFIED:
        return None
    for wanted, mode in translate.WANTED_MODES.items():
        if asked == mode:
            return wanted
    raise Invalid(_CREATE, zone_id, f"mode {asked}, which is none")


def _policy(operation: str, zone_id: str, asked: pb.ZoneResources) -> MemoryPolicy | None:
    if asked.memory_policy == pb.MEMORY_POLICY_UNSPECIFIED:
        return None
    for policy, number in translate.MEMORY_POLICIES.items():
        if asked.memory_policy == number:
            return policy
    raise Invalid(operation, zone_id, f"memory policy {asked.memory_policy}, which is none")


def _weight(operation: str, zone_id: str, asked: pb.ZoneResources) -> int | None:
    if not asked.HasField("weight"):
        return None
    if asked.weight not in WEIGHTS:
        raise Invalid(operation, zone_id, f"weight {asked.weight} is not 1 to {WEIGHTS[-1]}")
    return asked.weight


def _cap(operation: str, zone_id: str, asked: pb.ZoneResources) -> int | None:
    if not asked.HasField("cap"):
        return None
    if asked.cap > _MOST_CAP:
        raise Invalid(operation, zone_id, f"cap {asked.cap} is more than {_MOST_CAP} percent of a CPU")
    return asked.cap


def size(operation: str, zone_id: str, asked: pb.ZoneResources) -> ZoneSize:
    """Read a size of a running zone.  Invalid: no zone can have the weight, the cap or the policy."""
    return ZoneSize(
        memory_bytes=asked.memory_bytes,
        vcpus=asked.vcpus,
        weight=_weight(operation, zone_id, asked),
        cap=_cap(operation, zone_id, asked),
        memory_policy=_policy(operation, zone_id, asked),
    )


def disk_rates(operation: str, zone_id: str, asked: pb.DiskRates) -> DiskRates:
    """Read rates of disks.  Invalid: more than ``MOST_DISK_RATE``."""
    wanted = DiskRates(asked.read_bytes, asked.write_bytes, asked.read_operations, asked.write_operations)
    if wanted.exceeds(DiskRates(*[MOST_DISK_RATE] * 4)):
        raise Invalid(operation, zone_id, f"a rate of its disks is more than {MOST_DISK_RATE}")
    return wanted


def _id_mapping(zone_id: str, asked: pb.IdMapping) -> ZoneIdMapping:
    """Read an id mapping.  Invalid: empty, or with id 2^32 - 1, which means "no id" (user_namespaces(7))."""
    if not asked.length or asked.host_id + asked.length >= 2**32:
        raise Invalid(_CREATE, zone_id, f"id mapping: {asked.length} ids from {asked.host_id}")
    return ZoneIdMapping(asked.host_id, asked.length)


def _kernel(zone_id: str, asked: pb.ZoneKernel) -> DomainKernel:
    if not asked.image_path:
        raise Invalid(_CREATE, zone_id, "a kernel without an image")
    files = (("initramfs", asked.initramfs_path), ("addons", asked.addons_path))
    return DomainKernel(
        name=checks.name(_CREATE, asked.name),
        image=Path(checks.path(_CREATE, "kernel", asked.image_path)),
        **{kind: Path(checks.path(_CREATE, kind, path)) for kind, path in files if path},
    )
