"""Makes CRI's messages about containers."""

from __future__ import annotations

import json
from collections.abc import Mapping

from cri.container.signals import cri_signal
from cri.state.container import Container, ContainerPhase
from cri.state.records import has_id, has_labels
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_STATES: Mapping[ContainerPhase, cri.ContainerState.ValueType] = {
    ContainerPhase.CREATED: cri.CONTAINER_CREATED,
    ContainerPhase.RUNNING: cri.CONTAINER_RUNNING,
    ContainerPhase.EXITED: cri.CONTAINER_EXITED,
}


def state(container: Container) -> cri.ContainerState.ValueType:
    """The state of a container.  A removal does not change the state.

    UNKNOWN: an earlier release began the removal of a running container.
    """
    if container.phase is not ContainerPhase.REMOVING:
        return _STATES[container.phase]
    if container.exit:
        return cri.CONTAINER_EXITED
    return cri.CONTAINER_UNKNOWN if container.started_ns else cri.CONTAINER_CREATED


def selected(container: Container, asked: cri.ContainerFilter) -> bool:
    """Whether the filter of a list request selects a container."""
    return (
        has_id(container.id, asked.id)
        and has_id(container.sandbox_id, asked.pod_sandbox_id)
        and has_labels(container.labels, asked.label_selector)
        and (not asked.HasField("state") or asked.state.state == state(container))
    )


def item(container: Container) -> cri.Container:
    """The item of a container in a list."""
    return cri.Container(
        id=container.id,
        pod_sandbox_id=container.sandbox_id,
        metadata=container.config.metadata,
        image=container.config.image,
        image_ref=container.image.reference,
        state=state(container),
        created_at=container.created_ns,
        labels=container.config.labels,
        annotations=container.config.annotations,
        image_id=container.image.id,
    )


def status(container: Container) -> cri.ContainerStatus:
    """The full status of a container."""
    end = container.exit
    return cri.ContainerStatus(
        id=container.id,
        metadata=container.config.metadata,
        state=state(container),
        created_at=container.created_ns,
        started_at=container.started_ns,
        finished_at=end.finished_ns if end else 0,
        exit_code=end.code if end else 0,
        image=container.config.image,
        image_ref=container.image.reference,
        reason=end.reason if end else "",
        message=end.message if end else "",
        labels=container.config.labels,
        annotations=container.config.annotations,
        log_path=container.log_path,
        resources=_resources(container),
        image_id=container.image.id,
        user=_user(container),
        stop_signal=cri_signal(container.stop_signal),
        mounts=container.config.mounts,
    )


def info(container: Container) -> dict[str, str]:
    """The verbose information about a container, for ``crictl inspect``."""
    value = {
        "sandboxID": container.sandbox_id,
        "phase": container.phase.value,
        "process": json.loads(container.process),
    }
    return {"info": json.dumps(value)}


def _resources(container: Container) -> cri.ContainerResources | None:
    if not container.config.linux.HasField("resources"):
        return None
    return cri.ContainerResources(linux=container.config.linux.resources)


def _user(container: Container) -> cri.ContainerUser:
    who = json.loads(container.process)["user"]
    return cri.ContainerUser(
        linux=cri.LinuxContainerUser(
            uid=who["uid"], gid=who["gid"], supplemental_groups=who.get("additionalGids", [])
        )
    )
