"""Reads and checks protect.v1 requests about workloads and execs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from daemonkit.faults import Invalid
from protect.model import checks
from protect.model.container import (
    STACK_LIMIT,
    AnonymousVolume,
    ContainerFile,
    ExecSpec,
    ImageFilesystem,
    ImageVolume,
    MemoryVolume,
    Stack,
    WorkloadSpec,
)
from protect.model.copied_files import FileVolume
from protect.model.volume import Volume
from protect.server import device_requests
from xenpod_proto.protect.v1 import protect_pb2 as pb

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
ANONYMOUS_VOLUMES_LIMIT = 64
ANONYMOUS_PATHS_BYTES_LIMIT = 64 * 1024
"""Most bytes of the paths of anonymous volumes together: they share a frame with files and configuration."""
RETURN_LIMIT = 4096
"""Most bytes of a file volume that are written back to the host; the agent reads no more."""
FILES_BYTES_LIMIT = 384 * 1024
"""Most bytes of a workload's files: files and configuration fit one frame (1 MiB)."""
IMAGE_TYPES = ("squashfs", "erofs")
_NS = 1_000_000_000


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
        anonymous_volumes=_anonymous_volumes(operation, workload_id, request),
        devices=device_requests.devices(operation, workload_id, request.devices),
        writable_bytes=request.writable_bytes,
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


def _new_name(operation: str, workload_id: str, name: str, taken: set[str]) -> str:
    """Check the name of a volume, and add the name to ``taken``; Invalid for a taken name."""
    checks.identifier(operation, "volume", name)
    if name in taken:
        raise Invalid(operation, workload_id, f"two volumes {name!r}")
    taken.add(name)
    return name


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
        name = _new_name(operation, workload_id, volume.name, taken)
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
            on_disk=volume.on_disk,
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
        name = _new_name(operation, workload_id, volume.name, taken)
        _check_returned(operation, workload_id, volume)
        made = FileVolume(
            name=name,
            host_path=checks.path(operation, "file volume", volume.host_path),
            volume=checks.file_name(operation, volume.volume) if volume.volume else "",
            keep_current=volume.keep_current,
            writable=volume.writable,
            map_ids=volume.map_ids,
            return_bytes=volume.return_bytes,
            beneath=volume.beneath,
        )
        checked.append(made)
    return tuple(checked)


def _anonymous_volumes(
    operation: str, workload_id: str, request: pb.CreateWorkloadRequest
) -> tuple[AnonymousVolume, ...]:
    volumes = request.anonymous_volumes
    _at_most(operation, workload_id, ANONYMOUS_VOLUMES_LIMIT, "anonymous volumes", volumes)
    size = sum(len(volume.path.encode()) for volume in volumes)
    if size > ANONYMOUS_PATHS_BYTES_LIMIT:
        cause = f"paths of anonymous volumes: {size} bytes are more than {ANONYMOUS_PATHS_BYTES_LIMIT}"
        raise Invalid(operation, workload_id, cause)
    taken = {
        *(volume.name for volume in request.volumes),
        *(volume.name for volume in request.image_volumes),
        *(volume.name for volume in request.memory_volumes),
        *(volume.name for volume in request.file_volumes),
    }
    checked = []
    for volume in volumes:
        name = _new_name(operation, workload_id, volume.name, taken)
        path = checks.path(operation, "anonymous volume", volume.path)
        checked.append(AnonymousVolume(name, path))
    return tuple(checked)


def _check_returned(operation: str, workload_id: str, volume: pb.FileVolume) -> None:
    """Invalid: the volume must not write to the host's file."""
    if not volume.return_bytes:
        if volume.beneath:
            raise Invalid(
                operation, workload_id, f"file volume {volume.name!r}: beneath without return_bytes"
            )
        return
    subject = f"file volume {volume.name!r}: {volume.return_bytes} bytes to be returned"
    if volume.return_bytes > RETURN_LIMIT:
        raise Invalid(operation, workload_id, f"{subject}, more than {RETURN_LIMIT}")
    if volume.volume:
        raise Invalid(operation, workload_id, f"{subject} of a copy that others share")
    if not volume.writable:
        raise Invalid(operation, workload_id, f"{subject}, and it is read-only")
    if volume.beneath:
        checks.path(operation, "beneath", volume.beneath)
        if not volume.host_path.startswith(volume.beneath.rstrip("/") + "/"):
            raise Invalid(
                operation, workload_id, f"{subject}: its path is not beneath {volume.beneath!r:.200}"
            )


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
