"""Makes protect.v1 messages from values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from protect.model import watch_events
from protect.model.capacity.host_resources import HostNotice
from protect.model.capacity.modes import WantedMode
from protect.model.toolstack import DomainState, Mode
from protect.model.volume import DeviceKind, ZoneDevice
from protect.model.workload import Workload, WorkloadState
from protect.model.zone import MemoryPolicy, Zone, ZoneState
from protect.zones.recovery.orphans import Orphan
from xenpod_proto.protect.v1 import protect_pb2 as pb

ZONE_STATES: Mapping[ZoneState, pb.ZoneState.ValueType] = {
    ZoneState.CREATING: pb.ZONE_STATE_CREATING,
    ZoneState.RUNNING: pb.ZONE_STATE_RUNNING,
    ZoneState.DEAD: pb.ZONE_STATE_DEAD,
    ZoneState.DESTROYING: pb.ZONE_STATE_DESTROYING,
}

WORKLOAD_STATES: Mapping[WorkloadState, pb.WorkloadState.ValueType] = {
    WorkloadState.CREATED: pb.WORKLOAD_STATE_CREATED,
    WorkloadState.RUNNING: pb.WORKLOAD_STATE_RUNNING,
    WorkloadState.EXITED: pb.WORKLOAD_STATE_EXITED,
}

ZONE_MODES: Mapping[Mode, pb.ZoneMode.ValueType] = {Mode.PV: pb.ZONE_MODE_PV, Mode.PVH: pb.ZONE_MODE_PVH}

WANTED_MODES: Mapping[WantedMode, pb.ZoneMode.ValueType] = {
    WantedMode.PV: pb.ZONE_MODE_PV,
    WantedMode.PVH: pb.ZONE_MODE_PVH,
    WantedMode.AUTO: pb.ZONE_MODE_AUTO,
}

MEMORY_POLICIES: Mapping[MemoryPolicy, pb.MemoryPolicy.ValueType] = {
    MemoryPolicy.STATIC: pb.MEMORY_POLICY_STATIC,
    MemoryPolicy.DYNAMIC: pb.MEMORY_POLICY_DYNAMIC,
}


def orphan(value: Orphan) -> pb.Stranger:
    domain, made_for = value.domain, value.zone
    return pb.Stranger(
        domain_id=domain.id,
        uuid=str(domain.uuid),
        name=domain.name,
        memory_bytes=domain.memory_bytes,
        vcpus=domain.vcpus,
        ended=domain.state is DomainState.SHUTDOWN,
        zone_id=made_for.id if made_for else "",
        zone_name=made_for.spec.name if made_for else "",
    )


def zone(value: Zone, *, connected: bool, toolstack: str, paused: bool = False) -> pb.Zone:
    return pb.Zone(
        id=value.id,
        name=value.spec.name,
        state=ZONE_STATES[value.state],
        profile=value.spec.profile,
        resources=pb.ZoneResources(
            memory_bytes=value.spec.memory_bytes,
            vcpus=value.spec.vcpus,
            weight=value.spec.shares.weight,
            cap=value.spec.shares.cap,
            memory_max_bytes=value.spec.most_memory,
            vcpus_max=value.spec.most_vcpus,
            memory_policy=MEMORY_POLICIES[value.spec.memory_policy],
            memory_min_bytes=value.spec.memory_min_bytes,
        ),
        created_at_ns=value.created_at_ns,
        domain_id=value.domain_id,
        death_reason=value.death_reason,
        death_kind=value.death_kind,
        console=value.console,
        died_at_ns=value.died_at_ns,
        toolstack=toolstack,
        channel_connected=connected,
        paused=paused,
        kernel=value.spec.kernel.name if value.spec.kernel else "",
        mode=ZONE_MODES[value.spec.mode],
        file_volumes=value.file_volumes,
        anonymous_volumes=value.anonymous_volumes,
        seclabel=value.spec.seclabel,
        scratch_bytes=value.spec.scratch_bytes,
        disk_rates=pb.DiskRates(**asdict(value.spec.disk_rates)) if value.spec.disk_rates else None,
        cpupool=value.spec.cpupool,
        resizable=value.resizes,
        devices=[device(one, value.id) for one in value.devices],
    )


DEVICE_KINDS: Mapping[DeviceKind, pb.DeviceKind.ValueType] = {
    DeviceKind.BLOCK: pb.DEVICE_KIND_BLOCK,
    DeviceKind.PCI: pb.DEVICE_KIND_PCI,
}


def device(value: ZoneDevice, zone_id: str) -> pb.Device:
    return pb.Device(
        name=value.name,
        kind=DEVICE_KINDS[value.kind],
        place=value.place,
        readonly=value.readonly,
        zone_id=zone_id,
        disk=value.vdev,
        attached=value.ready,
        workloads=value.users,
    )


def workload(value: Workload) -> pb.Workload:
    return pb.Workload(
        id=value.id,
        zone_id=value.zone_id,
        state=WORKLOAD_STATES[value.state],
        created_at_ns=value.created_at_ns,
        started_at_ns=value.started_at_ns,
        finished_at_ns=value.finished_at_ns,
        pid=value.pid,
        exit_code=value.exit_code,
        reason=value.reason.value if value.reason else "",
        message=value.message,
    )


def host_notice(value: HostNotice) -> pb.HostNotice:
    return pb.HostNotice(
        setting=value.setting,
        place=value.place,
        value=value.value,
        wanted=value.wanted,
        effect=value.effect,
    )


def event(value: watch_events.Event, toolstack: str) -> pb.WatchEvent:
    match value:
        case watch_events.ZoneSeen(seen, connected, paused):
            shown = zone(seen, connected=connected, toolstack=toolstack, paused=paused)
            return pb.WatchEvent(zone=shown)
        case watch_events.ZoneGone(zone_id):
            return pb.WatchEvent(zone_gone=zone_id)
        case watch_events.WorkloadSeen(found):
            return pb.WatchEvent(workload=workload(found))
        case watch_events.WorkloadGone(workload_id):
            return pb.WatchEvent(workload_gone=workload_id)
        case watch_events.NoticeSeen(notice):
            return pb.WatchEvent(notice=host_notice(notice))
        case watch_events.NoticeGone(setting):
            return pb.WatchEvent(notice_gone=setting)
        case watch_events.Synced():
            return pb.WatchEvent(synced=pb.Empty())
