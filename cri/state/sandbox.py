"""The record of a pod sandbox.

        CREATING ──▶ READY ──▶ DEAD          (the zone ended by itself; its network still exists)
           │           │         │
           ▼           └────┬────┘
        UNDOING             ▼
           │             STOPPING ──▶ STOPPED
           │                │            │
           ▼                └─────┬──────┘
         gone                     ▼
                              REMOVING ──▶ gone

Each arrow is stored before its side effects begin: a restarted daemon finishes the work.
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
ANONYMOUS_VOLUMES = "anonymous-volumes"
"""The same: the VOLUMEs of images."""

HIDDEN = frozenset({SandboxPhase.CREATING, SandboxPhase.UNDOING})
"""Phases of sandboxes that callers cannot see, yet or ever."""


HAS_ZONE = frozenset({SandboxPhase.READY, SandboxPhase.STOPPING})
"""Phases in which protectd has the sandbox's zone, as far as we know."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A pod sandbox.  Its zone has the same id.  ``config`` is never changed."""

    id: str
    phase: SandboxPhase
    created_ns: int
    handler: str
    config: cri.PodSandboxConfig
    attachment: Attachment
    death_reason: str = ""
    """Why the zone ended by itself; "" otherwise."""
    kernel: str = ""
    """The id of the zone's kernel image; "": the toolstack's own kernel."""
    in_zone: tuple[str, ...] = ()
    """Volumes in the pod's zone that earlier releases did not have there; chosen when the pod is made."""

    @property
    def hidden(self) -> bool:
        """Whether callers cannot see the sandbox."""
        return self.phase in HIDDEN

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels, for selectors."""
        return self.config.labels

    @property
    def hostname(self) -> str:
        """The zone's own host name: the pod's hostname, or a name made from the pod's name."""
        return self.config.hostname or self.config.metadata.name.lower().replace("_", "-")[:63].strip("-.")
