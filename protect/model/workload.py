"""A workload: a frozen value and the table of its states.

::

    CREATING ──▶ CREATED ──▶ RUNNING ──▶ EXITED
                    └──────────────────────▲

Callers never see CREATING: protectd either finishes or undoes the creation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from daemonkit.faults import Refused
from protect.model.copied_files import FileId, FileVolume
from protect.model.process import Streams

KILLED = 128 + 9
"""Exit code of a workload that ended with its zone."""

START_FAILED = 128
"""Exit code of a workload without a successful start."""


class WorkloadState(Enum):
    """State of a workload."""

    CREATING = "creating"
    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"


class Reason(Enum):
    """Why a workload ended."""

    COMPLETED = "Completed"
    ERROR = "Error"
    OOM_KILLED = "OOMKilled"
    START_ERROR = "StartError"
    VOLUMES_LOST = "VolumesLost"
    # The zone ended first: "Zone" and a DeathKind.
    ZONE_KERNEL_PANIC = "ZoneKernelPanic"
    ZONE_AGENT_CRASHED = "ZoneAgentCrashed"
    ZONE_OUT_OF_MEMORY = "ZoneOutOfMemory"
    ZONE_CRASHED = "ZoneCrashed"
    ZONE_POWERED_OFF = "ZonePoweredOff"
    ZONE_REBOOTED = "ZoneRebooted"
    ZONE_DESTROYED = "ZoneDestroyed"
    ZONE_VANISHED = "ZoneVanished"
    ZONE_HOST_SHUT_DOWN = "ZoneHostShutDown"
    ZONE_RULES_BROKEN = "ZoneRulesBroken"
    ZONE_AGENT_REPLACED = "ZoneAgentReplaced"
    ZONE_CHANNEL_LOST = "ZoneChannelLost"
    ZONE_UNKNOWN = "ZoneUnknown"

    @property
    def of_zone(self) -> bool:
        """Whether the zone ended first."""
        return self.name.startswith("ZONE_")


NEXT: Mapping[WorkloadState, frozenset[WorkloadState]] = {
    WorkloadState.CREATING: frozenset({WorkloadState.CREATED}),
    WorkloadState.CREATED: frozenset({WorkloadState.RUNNING, WorkloadState.EXITED}),
    WorkloadState.RUNNING: frozenset({WorkloadState.EXITED}),
    WorkloadState.EXITED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class WorkloadDisk:
    """A read-only disk of the zone, and the host's file behind the disk."""

    vdev: str
    file: FileId


@dataclass(frozen=True, slots=True)
class WorkloadExit:
    """Exit status of a process; ``at_ns`` is ns since the epoch."""

    code: int
    oom_killed: bool
    at_ns: int
    zone_oom: bool = False
    """With ``oom_killed``: the zone had no memory left; the workload did not reach its own limit."""

    @property
    def message(self) -> str:
        """Details beyond the reason, for people."""
        if not self.oom_killed:
            return ""
        if self.zone_oom:
            return "the zone had no memory left; the container's own limit was not reached"
        return "it reached its memory limit"

    @property
    def reason(self) -> Reason:
        if self.oom_killed:
            return Reason.OOM_KILLED
        return Reason.COMPLETED if self.code == 0 else Reason.ERROR


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload as it is now.  Times are ns since the epoch, 0 for "not yet"."""

    id: str
    zone_id: str
    state: WorkloadState
    created_at_ns: int
    disks: tuple[WorkloadDisk, ...]
    """The disks, beginning with the root's; workloads of a zone may share some."""
    log_path: str = ""
    tty: bool = False
    stdin_once: bool = False
    streams: Streams = Streams()
    pid: int = 0
    started_at_ns: int = 0
    finished_at_ns: int = 0
    exit_code: int = 0
    reason: Reason | None = None
    message: str = ""
    start_error: str = ""
    """Why a CREATED workload cannot be started.  The zone has no container then."""
    command: str = ""
    """The beginning of the command line, for messages; "": not known."""
    files: tuple[FileVolume, ...] = ()
    """Volumes with a copy in the zone."""

    def to(self, state: WorkloadState, **changes: Any) -> Workload:
        """The workload in another state.  Refused: the table does not allow the change."""
        if state not in NEXT[self.state]:
            cause = f"it is {self.state.value} and cannot be {state.value}"
            raise Refused("change workload", self.id, cause)
        return replace(self, state=state, **changes)

    def exited(self, end: WorkloadExit, reason: Reason | None = None, message: str = "") -> Workload:
        return self.to(
            WorkloadState.EXITED,
            exit_code=end.code,
            reason=reason or end.reason,
            message=message or end.message,
            finished_at_ns=end.at_ns,
        )
