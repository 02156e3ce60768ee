"""Makes messages to the agent from values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from protect.model.container import ContainerSpec, DiskFilesystem, MemoryVolume
from protect.model.copied_files import FileChunk, FileKind, FilePart
from protect.model.process import ProcessName
from protect.model.statistics import StatsKind
from protect.model.zone import SCRATCH_VDEV, GuestNetwork, ZoneSpec
from xenpod_proto.channel.v1 import channel_pb2 as pb

_FILE_TYPES: Mapping[FileKind, pb.FileType.ValueType] = {
    FileKind.REGULAR: pb.FILE_TYPE_REGULAR,
    FileKind.DIRECTORY: pb.FILE_TYPE_DIRECTORY,
    FileKind.SYMLINK: pb.FILE_TYPE_SYMLINK,
}


def process_ref(process: ProcessName) -> pb.ProcessRef:
    return pb.ProcessRef(container_id=process.container_id, exec_id=process.exec_id)


def configuration(spec: ZoneSpec) -> list[pb.Request]:
    """Requests for a new zone, in order."""
    scratch = pb.Request(mount_scratch=pb.MountScratch(disk=SCRATCH_VDEV))
    return [configure_zone(spec), *([scratch] if spec.scratch_bytes else [])]


def configure_zone(spec: ZoneSpec) -> pb.Request:
    asked = pb.ConfigureZone(hostname=spec.hostname, sysctls=dict(spec.sysctls))
    if spec.id_mapping:
        asked.id_mapping.host_id = spec.id_mapping.host_id
        asked.id_mapping.length = spec.id_mapping.length
    return pb.Request(configure_zone=asked)


def resize_zone(cpus: int) -> pb.Request:
    return pb.Request(resize_zone=pb.ResizeZone(cpus=cpus))


def configure_network(guest: GuestNetwork, name: str) -> pb.Request:
    """Configure the zone's first interface."""
    routes = [pb.Route(destination=route.destination, gateway=route.gateway) for route in guest.routes]
    asked = pb.ConfigureNetwork(
        index=0, name=name, mac=guest.mac, mtu=guest.mtu, addresses=guest.addresses, routes=routes
    )
    return pb.Request(configure_network=asked)


def create_container(spec: ContainerSpec) -> pb.Request:
    asked = pb.CreateContainer(
        id=spec.id,
        config_json=spec.oci_config,
        rootfs=_filesystems(spec.rootfs),
        tty=spec.tty,
        stdin=spec.stdin,
        files=[pb.File(name=file.name, mode=file.mode, content=file.content) for file in spec.files],
        image_volumes=[
            pb.ImageVolume(
                name=volume.name, filesystems=_filesystems(volume.filesystems), sub_path=volume.sub_path
            )
            for volume in spec.image_volumes
        ],
        memory_volumes=[_memory_volume(volume) for volume in spec.memory_volumes],
        file_volumes=[
            pb.FileVolume(name=volume.name, owner=volume.owner, volume=volume.volume)
            for volume in spec.file_volumes
        ],
        shared_volumes=spec.shared_volumes,
        anonymous_volumes=[
            pb.AnonymousVolume(name=volume.name, path=volume.path) for volume in spec.anonymous_volumes
        ],
        writable_bytes=spec.writable_bytes,
        answer_early=True,
    )
    return pb.Request(create_container=asked)


def _filesystems(filesystems: Iterable[DiskFilesystem]) -> list[pb.Filesystem]:
    return [pb.Filesystem(disk=one.disk, type=one.type) for one in filesystems]


def _memory_volume(volume: MemoryVolume) -> pb.MemoryVolume:
    return pb.MemoryVolume(
        name=volume.name,
        volume=volume.volume,
        size_bytes=volume.size_bytes,
        mode=volume.mode,
        uid=volume.uid,
        gid=volume.gid,
        sub_path=volume.sub_path,
        on_disk=volume.on_disk,
    )


def put_files(part: FilePart) -> pb.Request:
    asked = pb.PutFiles(
        owner=part.owner,
        volume=part.volume,
        version=part.version,
        first=part.first,
        last=part.last,
        size_bytes=part.size_bytes,
        map_ids=part.map_ids,
        entries=[
            _file_entry(chunk, content) for chunk, content in zip(part.chunks, part.contents, strict=True)
        ],
        keep=part.keep,
    )
    return pb.Request(put_files=asked)


def read_file(owner: str, volume: str, most: int) -> pb.Request:
    return pb.Request(read_file=pb.ReadFile(owner=owner, volume=volume, most=most))


def _file_entry(chunk: FileChunk, content: bytes) -> pb.FileEntry:
    entry = chunk.entry
    return pb.FileEntry(
        path=entry.path,
        type=_FILE_TYPES[entry.kind],
        mode=entry.mode,
        uid=entry.uid,
        gid=entry.gid,
        content=entry.target if entry.kind is FileKind.SYMLINK else content,
        more=chunk.more,
    )


def exec_process(process: ProcessName, oci_process: bytes, *, tty: bool, stdin: bool) -> pb.Request:
    asked = pb.ExecProcess(process=process_ref(process), process_json=oci_process, tty=tty, stdin=stdin)
    return pb.Request(exec_process=asked)


def signal_process(process: ProcessName, number: int, *, every: bool) -> pb.Request:
    return pb.Request(signal_process=pb.SignalProcess(process=process_ref(process), signal=number, all=every))


def resize_terminal(process: ProcessName, rows: int, columns: int) -> pb.Request:
    size = pb.ResizeTerminal(process=process_ref(process), rows=rows, columns=columns)
    return pb.Request(resize_terminal=size)


STATS: Mapping[StatsKind, pb.Request] = {
    StatsKind.WORKLOADS: pb.Request(get_stats=pb.GetStats(containers_only=True)),
    StatsKind.ZONE: pb.Request(get_stats=pb.GetStats()),
    StatsKind.DETAILS: pb.Request(get_stats=pb.GetStats(details=True)),
}


def start(container_id: str) -> pb.Request:
    return pb.Request(start_container=pb.StartContainer(id=container_id))


def update_container(container_id: str, resources: bytes) -> pb.Request:
    asked = pb.UpdateContainer(id=container_id, resources_json=resources)
    return pb.Request(update_container=asked)
