"""Zones and workloads as JSON objects of the store, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

from protect.model.process import Streams
from protect.model.workload import Reason, Workload, WorkloadDisk, WorkloadState
from protect.model.zone import Zone, ZoneIdMapping, ZoneSpec, ZoneState
from protect.toolstack.port import DomainId, DomainKernel, Mode


def of_zone(zone: Zone) -> dict[str, Any]:
    spec = zone.spec
    return {
        "id": spec.id,
        "name": spec.name,
        "hostname": spec.hostname,
        "profile": spec.profile,
        "memory_bytes": spec.memory_bytes,
        "vcpus": spec.vcpus,
        "mode": spec.mode.value,
        "interfaces": spec.interfaces,
        "netns": spec.netns,
        "sysctls": dict(spec.sysctls),
        "id_mapping": [spec.id_mapping.host_id, spec.id_mapping.length] if spec.id_mapping else [],
        "kernel": _of_kernel(spec.kernel) if spec.kernel else None,
        "uuid": str(zone.uuid),
        "state": zone.state.value,
        "created_at_ns": zone.created_at_ns,
        "domain_id": zone.domain_id,
        "boot_id": zone.boot_id,
        "agent_version": zone.agent_version,
        "death_reason": zone.death_reason,
        "died_at_ns": zone.died_at_ns,
    }


def zone(body: dict[str, Any]) -> Zone:
    spec = ZoneSpec(
        id=body["id"],
        name=body["name"],
        hostname=body["hostname"],
        profile=body["profile"],
        memory_bytes=body["memory_bytes"],
        vcpus=body["vcpus"],
        mode=Mode(body["mode"]),
        interfaces=body["interfaces"],
        netns=body.get("netns", ""),
        sysctls=body["sysctls"],
        id_mapping=ZoneIdMapping(*body["id_mapping"]) if body.get("id_mapping") else None,
        kernel=_kernel(body["kernel"]) if body.get("kernel") else None,
    )
    return Zone(
        spec=spec,
        uuid=UUID(body["uuid"]),
        state=ZoneState(body["state"]),
        created_at_ns=body["created_at_ns"],
        domain_id=DomainId(body["domain_id"]),
        boot_id=body["boot_id"],
        agent_version=body["agent_version"],
        death_reason=body["death_reason"],
        died_at_ns=body["died_at_ns"],
    )


def _of_kernel(kernel: DomainKernel) -> dict[str, str]:
    files = {"image": kernel.image, "initramfs": kernel.initramfs, "addons": kernel.addons}
    return {"name": kernel.name, **{key: str(path) for key, path in files.items() if path}}


def _kernel(body: dict[str, str]) -> DomainKernel:
    return DomainKernel(body["name"], **{key: Path(body[key]) for key in body if key != "name"})


def of_workload(workload: Workload) -> dict[str, Any]:
    return {
        "id": workload.id,
        "zone_id": workload.zone_id,
        "state": workload.state.value,
        "created_at_ns": workload.created_at_ns,
        "disks": [[disk.vdev, *disk.file] for disk in workload.disks],
        "log_path": workload.log_path,
        "tty": workload.tty,
        "stdin_once": workload.stdin_once,
        "streams": [workload.streams.stdin, workload.streams.stdout, workload.streams.stderr],
        "pid": workload.pid,
        "started_at_ns": workload.started_at_ns,
        "finished_at_ns": workload.finished_at_ns,
        "exit_code": workload.exit_code,
        "reason": workload.reason.value if workload.reason else "",
        "message": workload.message,
    }


def workload(body: dict[str, Any]) -> Workload:
    return Workload(
        id=body["id"],
        zone_id=body["zone_id"],
        state=WorkloadState(body["state"]),
        created_at_ns=body["created_at_ns"],
        disks=_disks(body),
        log_path=body["log_path"],
        tty=body["tty"],
        stdin_once=body["stdin_once"],
        streams=Streams(*body["streams"]),
        pid=body["pid"],
        started_at_ns=body["started_at_ns"],
        finished_at_ns=body["finished_at_ns"],
        exit_code=body["exit_code"],
        reason=Reason(body["reason"]) if body["reason"] else None,
        message=body["message"],
    )


def _disks(body: dict[str, Any]) -> tuple[WorkloadDisk, ...]:
    """Those of a record that names no files are shared with nobody: no file has the id 0, 0."""
    if "disks" not in body:
        return tuple(WorkloadDisk(vdev, (0, 0)) for vdev in body["vdevs"])
    return tuple(WorkloadDisk(vdev, (device, inode)) for vdev, device, inode in body["disks"])
