"""The record of a container.

CREATING ──▶ CREATED ──▶ RUNNING ──▶ EXITED      (as protectd reports)
   │            └───────────┴──────────┤
   ▼                                   ▼
UNDOING ──▶ gone                   REMOVING ──▶ gone
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from xenpod_proto.cri.v1 import runtime_pb2 as cri


class ContainerPhase(Enum):
    """The phase of a container's life."""

    CREATING = "creating"
    UNDOING = "undoing"
    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    REMOVING = "removing"


NEXT: Mapping[ContainerPhase, frozenset[ContainerPhase]] = {
    ContainerPhase.CREATING: frozenset({ContainerPhase.CREATED, ContainerPhase.UNDOING}),
    ContainerPhase.UNDOING: frozenset(),
    ContainerPhase.CREATED: frozenset(
        {ContainerPhase.RUNNING, ContainerPhase.EXITED, ContainerPhase.REMOVING}
    ),
    ContainerPhase.RUNNING: frozenset({ContainerPhase.EXITED, ContainerPhase.REMOVING}),
    ContainerPhase.EXITED: frozenset({ContainerPhase.REMOVING}),
    ContainerPhase.REMOVING: frozenset(),
}

LIVE = frozenset({ContainerPhase.CREATED, ContainerPhase.RUNNING})
HIDDEN = frozenset({ContainerPhase.CREATING, ContainerPhase.UNDOING})


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """How a container ended."""

    finished_ns: int
    code: int
    reason: str
    """Completed, Error, OOMKilled, StartError, VolumesLost, Unknown, or "Zone" and how its zone died."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ContainerImage:
    """A container's image, shown to callers."""

    id: str
    reference: str
    """``repository@digest`` if known, else the id."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container.  Its workload has the same id.  ``config`` is never changed."""

    id: str
    sandbox_id: str
    phase: ContainerPhase
    created_ns: int
    config: cri.ContainerConfig
    image: ContainerImage
    log_path: str
    process: str
    """The OCI ``process`` object, JSON; an exec uses the same object with other arguments."""
    stop_signal: int
    started_ns: int = 0
    exit: ContainerExit | None = None
    volume_images: tuple[str, ...] = ()
    """Ids of the container's volume images."""

    @property
    def images(self) -> tuple[str, ...]:
        """Ids of all images of the container."""
        return tuple(dict.fromkeys((self.image.id, *self.volume_images)))

    @property
    def hidden(self) -> bool:
        """Whether callers cannot see the container."""
        return self.phase in HIDDEN

    @property
    def live(self) -> bool:
        """Whether its zone still has the container."""
        return self.phase in LIVE

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels, for selectors."""
        return self.config.labels
