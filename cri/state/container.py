"""A container as xenpod-cri remembers it.

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
    """The image of a container, as callers see it."""

    id: str
    reference: str
    """``repository@digest`` where known, else the id."""


@dataclass(frozen=True, slots=True)
class Container:
    """One container; its id is also its workload's.  ``config`` is never changed."""

    id: str
    sandbox_id: str
    phase: ContainerPhase
    created_ns: int
    config: cri.ContainerConfig
    image: ContainerImage
    log_path: str
    process: str
    """The OCI ``process`` object, JSON; an exec is this with other arguments."""
    stop_signal: int
    started_ns: int = 0
    exit: ContainerExit | None = None
    volume_images: tuple[str, ...] = ()
    """Ids of the images that are its volumes."""

    @property
    def images(self) -> tuple[str, ...]:
        """Ids of all images that it needs."""
        return tuple(dict.fromkeys((self.image.id, *self.volume_images)))

    @property
    def hidden(self) -> bool:
        """Whether callers do not see it."""
        return self.phase in HIDDEN

    @property
    def live(self) -> bool:
        """Whether its zone still has the container."""
        return self.phase in LIVE

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels, for selectors."""
        return self.config.labels
