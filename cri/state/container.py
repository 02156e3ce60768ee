"""A container as xenpod-cri remembers it.

CREATING ──▶ CREATED ──▶ RUNNING ──▶ EXITED      (as protectd tells)
   │            └───────────┴──────────┤
   ▼                                   ▼
UNDOING ──▶ gone                   REMOVING ──▶ gone
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from xenpod_proto.cri.v1 import runtime_pb2 as cri


class Phase(Enum):
    """Where a container is in its life."""

    CREATING = "creating"
    UNDOING = "undoing"
    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    REMOVING = "removing"


NEXT: Mapping[Phase, frozenset[Phase]] = {
    Phase.CREATING: frozenset({Phase.CREATED, Phase.UNDOING}),
    Phase.UNDOING: frozenset(),
    Phase.CREATED: frozenset({Phase.RUNNING, Phase.EXITED, Phase.REMOVING}),
    Phase.RUNNING: frozenset({Phase.EXITED, Phase.REMOVING}),
    Phase.EXITED: frozenset({Phase.REMOVING}),
    Phase.REMOVING: frozenset(),
}

LIVE = frozenset({Phase.CREATED, Phase.RUNNING})
HIDDEN = frozenset({Phase.CREATING, Phase.UNDOING})


@dataclass(frozen=True, slots=True)
class Exit:
    """How a container ended."""

    finished_ns: int
    code: int
    reason: str
    """Completed, Error, OOMKilled, StartError, ZoneCrashed or Unknown."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Image:
    """The image that a container was made of, as it is told to callers."""

    id: str
    reference: str
    """``repository@digest`` where known, else the id."""


@dataclass(frozen=True, slots=True)
class Container:
    """One container; its id is also its workload's.  ``config`` is never changed."""

    id: str
    sandbox_id: str
    phase: Phase
    created_ns: int
    config: cri.ContainerConfig
    image: Image
    log_path: str
    process: str
    """The OCI ``process`` object, JSON; an exec is this with other arguments."""
    stop_signal: int
    started_ns: int = 0
    exit: Exit | None = None
    volume_images: tuple[str, ...] = ()
    """Ids of the images that it has as volumes."""

    @property
    def images(self) -> tuple[str, ...]:
        """Ids of all images it needs."""
        return tuple(dict.fromkeys((self.image.id, *self.volume_images)))

    @property
    def hidden(self) -> bool:
        """Whether callers see it."""
        return self.phase in HIDDEN

    @property
    def live(self) -> bool:
        """Whether its zone still has it."""
        return self.phase in LIVE

    @property
    def labels(self) -> Mapping[str, str]:
        """For selectors."""
        return self.config.labels
