"""Reads and checks protect.v1 requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from daemonkit.faults import Invalid
from protect.config import DEFAULT_PROFILE, Profile, ProtectdConfig
from protect.model import checks
from protect.model.container import (
    STACK_LIMIT,
    ContainerFile,
    ExecSpec,
    ImageFilesystem,
    ImageVolume,
    MemoryVolume,
    Stack,
    WorkloadSpec,
)
from protect.model.files import FileVolume
from protect.model.modes import WantedMode, choose, refuse_impossible_label, refuse_impossible_mode
from protect.model.shares import CPU_PERCENT, WEIGHTS, CpuShares
from protect.model.toolstack import Capabilities, DomainKernel
from protect.model.volume import Volume
from protect.model.zone import ZoneIdMapping, ZoneSpec
from protect.server import translate
from protect.zones.resize import ZoneSize
from xenpod_proto.protect.v1 import protect_pb2 as pb

_MIB = 1 << 20
CONFIG_LIMIT = 512 * 1024
"""Most bytes of an OCI configuration."""
PROCESS_LIMIT = 256 * 1024
"""Most bytes of an OCI process object."""
RESOURCES_LIMIT = 64 * 1024
"""Most bytes of an OCI resources object."""
FILES_LIMIT = 32
VOLUMES_LIMIT = 256
MEMORY_VOLUMES_LIMIT = 256
IMAGE_VOLUMES_LIMIT = 32
RETURN_LIMIT = 4096
"""Bytes that a file volume gives back, as the agent reads them."""
FILES_BYTES_LIMIT = 384 * 1024
"""Most bytes of all files of a workload, which fit one frame (1 MiB) together with the configuration."""
IMAGE_TYPES = ("squashfs", "erofs")
_NS = 1_000_000_000
_MOST_CAP = 1024 * CPU_PERCENT
"""That of a zone of all the vCPUs that a profile can allow."""


def zone_spec(config: ProtectdConfig, request: pb.CreateZoneRequest, capabilities: Capabilities) -> ZoneSpec:
    """Read the spec of a zone; its mode is one that the host can run."""
    operation = "create zone"
    zone_id = checks.identifier(operation, "zone", request.id)
    profile = config.profile(request.profile)
    if request.interfaces > 1:
        raise Invalid(operation, zone_id, f"{request.interfaces} interfaces are more than 1")
    memory, vcpus = _size(operation, zone_id, profile, request.resources)
    wanted = _wanted(operation, zone_id, profile, request)
    mode = choose(wanted, capabilities, own_kernel=not request.HasField("kernel"))
    refuse_impossible_mode(operation, zone_id, mode, capabilities)
    seclabel = checks.seclabel(operation, request.seclabel)
    refuse_impossible_label(operation, zone_id, seclabel, capabilities)
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
        seclabel=seclabel,
    )


def _wanted(operation: str, zone_id: str, profile: Profile, request: pb.CreateZoneRequest) -> WantedMode:
    if request.mode == pb.ZONE_MODE_UNSPECIFIED:
        return profile.mode
    for wanted, mode in translate.WANTED_MODES.items():
        if request.mode == mode:
            return wanted
    raise Invalid(operation, zone_id, f"mode {request.mode}, which is none")


def _size(operation: str, zone_id: str, profile: Profile, asked: pb.ZoneResources) -> tuple[int, int]:
    memory = asked.memory_bytes or profile.memory
    vcpus = asked.vcpus or profile.vcpus
    if not profile.memory_min <= memory <= profile.memory_max:
        low, high = profile.memory_min / _MIB, profile.memory_max / _MIB
        cause = f"{memory / _MIB:.0f} MiB of memory are not between {low:.0f} and {high:.0f} MiB"
        raise Invalid(operation, zone_id, cause, "the profile sets the limits")
    if vcpus > profile.vcpus_max:
        cause = f"{vcpus} vCPUs are more than {profile.vcpus_max}"
        raise Invalid(operation, zone_id, cause, "the profile sets the limits")
    return memory, vcpus


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
    )


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


def workload_spec(request: pb.CreateWorkloadRequest) -> WorkloadSpec:
    operation = "create workload"
    workload_id = checks.identifier(operation, "workload", request.id)
    if request.stdin_once and not request.stdin:
        raise Invalid(operation, workload_id, "stdin_once without stdin")
    return WorkloadSpec(
        id=workload_id,
        zone_id=checks.identifier(operation, "zone", request.zone_id),
        oci_config=checks.json_object(operation, "OCI configuration", request.oci_config, CONFIG_LIMIT),
        stack=_stack(operation, workload_id, "its root", request.filesystems),
        tty=request.tty,
        stdin=request.stdin,
        stdin_once=request.stdin_once,
        log_path=checks.path(operation, "log", request.log_path) if request.log_path else "",
        files=_files(operation, workload_id, request.files),
        volumes=_volumes(operation, workload_id, request.volumes),
        image_volumes=_image_volumes(operation, workload_id, request.image_volumes),
        memory_volumes=_memory_volumes(operation, workload_id, request),
        file_volumes=_file_volumes(operation, workload_id, request),
    )


def _files(operation: str, workload_id: str, files: Iterable[pb.File]) -> tuple[ContainerFile, ...]:
    checked: dict[str, ContainerFile] = {}
    for file in files:
        name = checks.file_name(operation, file.name)
        if name in checked:
            raise Invalid(operation, workload_id, f"two files {name!r}")
        if file.mode > 0o7777:
            raise Invalid(operation, workload_id, f"file {name!r}: mode {file.mode:#o}")
        checked[name] = ContainerFile(name=name, mode=file.mode, content=file.content)
    size = sum(len(file.content) for file in checked.values())
    if len(checked) > FILES_LIMIT or size > FILES_BYTES_LIMIT:
        cause = f"{len(checked)} files of {size} bytes; at most {FILES_LIMIT} of {FILES_BYTES_LIMIT} together"
        raise Invalid(operation, workload_id, cause)
    return tuple(checked.values())


def _stack(operation: str, workload_id: str, what: str, filesystems: Sequence[pb.Filesystem]) -> Stack:
    if not 1 <= len(filesystems) <= STACK_LIMIT:
        cause = f"{what}: {len(filesystems)} file systems are not 1 to {STACK_LIMIT}"
        raise Invalid(operation, workload_id, cause)
    for filesystem in filesystems:
        if filesystem.type not in IMAGE_TYPES:
            kind = checks.printable(filesystem.type, 40)
            cause = f"{what}: file system {kind!r} is not one of {', '.join(IMAGE_TYPES)}"
            raise Invalid(operation, workload_id, cause)
    return tuple(
        ImageFilesystem(Path(checks.path(operation, "image", one.path)), one.type) for one in filesystems
    )


def _at_most(operation: str, workload_id: str, limit: int, what: str, asked: Sequence[object]) -> None:
    if len(asked) > limit:
        raise Invalid(operation, workload_id, f"{len(asked)} {what} are more than {limit}")


def _image_volumes(
    operation: str, workload_id: str, volumes: Sequence[pb.ImageVolume]
) -> tuple[ImageVolume, ...]:
    checked: dict[str, ImageVolume] = {}
    _at_most(operation, workload_id, IMAGE_VOLUMES_LIMIT, "image volumes", volumes)
    for volume in volumes:
        name = checks.identifier(operation, "volume", volume.name)
        if name in checked:
            raise Invalid(operation, workload_id, f"two image volumes {name!r}")
        checked[name] = ImageVolume(
            name=name,
            stack=_stack(operation, workload_id, f"volume {name}", volume.filesystems),
            sub_path=checks.relative(operation, "sub path", volume.sub_path),
        )
    return tuple(checked.values())


def _memory_volumes(
    operation: str, workload_id: str, request: pb.CreateWorkloadRequest
) -> tuple[MemoryVolume, ...]:
    _at_most(operation, workload_id, MEMORY_VOLUMES_LIMIT, "memory volumes", request.memory_volumes)
    taken = {volume.name for volume in request.image_volumes}
    checked = []
    for volume in request.memory_volumes:
        name = checks.identifier(operation, "volume", volume.name)
        if name in taken:
            raise Invalid(operation, workload_id, f"two volumes {name!r}")
        taken.add(name)
        if volume.mode > 0o7777:
            raise Invalid(operation, workload_id, f"memory volume {name!r}: mode {volume.mode:#o}")
        made = MemoryVolume(
            name=name,
            volume=checks.file_name(operation, volume.volume),
            size_bytes=volume.size_bytes,
            mode=volume.mode,
            uid=volume.uid,
            gid=volume.gid,
            sub_path=checks.relative(operation, "sub path", volume.sub_path),
        )
        checked.append(made)
    return tuple(checked)


def _file_volumes(
    operation: str, workload_id: str, request: pb.CreateWorkloadRequest
) -> tuple[FileVolume, ...]:
    _at_most(operation, workload_id, VOLUMES_LIMIT, "file volumes", request.file_volumes)
    taken = {
        *(volume.name for volume in request.volumes),
        *(volume.name for volume in request.image_volumes),
        *(volume.name for volume in request.memory_volumes),
    }
    checked = []
    for volume in request.file_volumes:
        name = checks.identifier(operation, "volume", volume.name)
        if name in taken:
            raise Invalid(operation, workload_id, f"two volumes {name!r}")
        taken.add(name)
        if volume.return_bytes > RETURN_LIMIT or (volume.return_bytes and volume.volume):
            cause = f"file volume {name!r}: {volume.return_bytes} bytes to be returned"
            raise Invalid(operation, workload_id, cause)
        made = FileVolume(
            name=name,
            host_path=checks.path(operation, "file volume", volume.host_path),
            volume=checks.file_name(operation, volume.volume) if volume.volume else "",
            keep_current=volume.keep_current,
            writable=volume.writable,
            map_ids=volume.map_ids,
            return_bytes=volume.return_bytes,
        )
        checked.append(made)
    return tuple(checked)


def _volumes(operation: str, workload_id: str, volumes: Sequence[pb.Volume]) -> tuple[Volume, ...]:
    _at_most(operation, workload_id, VOLUMES_LIMIT, "volumes", volumes)
    checked: dict[str, Volume] = {}
    for volume in volumes:
        name = checks.file_name(operation, volume.name)
        if name in checked:
            raise Invalid(operation, workload_id, f"two volumes {name!r}")
        checked[name] = Volume(
            name=name,
            host_path=checks.path(operation, "volume", volume.host_path),
            readonly=volume.readonly,
            follow_host=volume.follow_host,
            create_directory=volume.create_directory,
            map_ids=volume.map_ids,
        )
    return tuple(checked.values())


def exec_spec(start: pb.ExecStart) -> ExecSpec:
    if start.timeout_ns < 0:
        raise Invalid("exec", start.workload_id, "its timeout is negative")
    return ExecSpec(
        workload_id=checks.identifier("exec", "workload", start.workload_id),
        process=checks.json_object("exec", "OCI process", start.process, PROCESS_LIMIT),
        tty=start.tty,
        stdin=start.stdin,
        timeout=start.timeout_ns / _NS,
    )


def update(request: pb.UpdateWorkloadRequest) -> tuple[str, bytes]:
    operation = "update workload"
    workload_id = checks.identifier(operation, "workload", request.id)
    resources = checks.json_object(operation, "OCI resources", request.resources, RESOURCES_LIMIT)
    return workload_id, resources
