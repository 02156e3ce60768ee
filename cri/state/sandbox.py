"""A pod sandbox as xenpod-cri remembers it.

        CREATING ──▶ READY ──▶ DEAD          (the zone ended by itself; its network is still there)
           │           │         │
           ▼           └────┬────┘
        UNDOING             ▼
           │             STOPPING ──▶ STOPPED
           │                │            │
           ▼                └─────┬──────┘
         gone                     ▼
                              REMOVING ──▶ gone

Each arrow is stored before its side effects begin, so that a restarted daemon knows what to finish.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from cri.state.attachment import Attachment
from xenpod_proto.cri.v1 import runtime_pb2 as cri


class SandboxPhase(Enum):
    """The phase of a sandbox's life."""

    CREATING = "creating"
    UNDOING = "undoing"
    READY = "ready"
    DEAD = "dead"
    STOPPING = "stopping"
    STOPPED = "stopped"
    REMOVING = "removing"


NEXT: Mapping[SandboxPhase, frozenset[SandboxPhase]] = {
    SandboxPhase.CREATING: frozenset({SandboxPhase.READY, SandboxPhase.UNDOING}),
    SandboxPhase.UNDOING: frozenset(),
    SandboxPhase.READY: frozenset({SandboxPhase.DEAD, SandboxPhase.STOPPING}),
    SandboxPhase.DEAD: frozenset({SandboxPhase.STOPPING}),
    SandboxPhase.STOPPING: frozenset({SandboxPhase.STOPPED}),
    SandboxPhase.STOPPED: frozenset({SandboxPhase.REMOVING}),
    SandboxPhase.REMOVING: frozenset(),
}

EMPTY_DIR = "empty-dir"
"""In ``Sandbox.in_zone``: emptyDirs on disk."""
SMALL_FILES = "small-files"
"""The same: copies of the kubelet's small files."""

HIDDEN = frozenset({SandboxPhase.CREATING, SandboxPhase.UNDOING})
"""Phases in which callers do not see the sandbox, yet or ever."""


HAS_ZONE = frozenset({SandboxPhase.READY, SandboxPhase.STOPPING})
"""Phases in which protectd has the sandbox's zone, as far as we know."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """One pod sandbox; its id is also its zone's.  ``config`` is never changed."""

    id: str
    phase: SandboxPhase
    created_ns: int
    handler: str
    config: cri.PodSandboxConfig
    attachment: Attachment
    death_reason: str = ""
    """Why the zone ended by itself; "" otherwise."""
    kernel: str = ""
    """The id of the image that its zone boots from; "": the toolstack's own kernel."""
    in_zone: tuple[str, ...] = ()
    """Which of its volumes live in its zone, of those that once did not; decided when the pod is made."""

    @property
    def hidden(self) -> bool:
        """Whether callers do not see it."""
        return self.phase in HIDDEN

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels, for selectors."""
        return self.config.labels

    @property
    def hostname(self) -> str:
        """The zone's own host name: the pod's hostname, or one made from the pod's name."""
        return self.config.hostname or self.config.metadata.name.lower().replace("_", "-")[:63].strip("-.")
