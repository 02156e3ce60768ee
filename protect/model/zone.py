"""What a zone is: a frozen value and the table of its states.

::

    CREATING ──▶ RUNNING ──▶ DEAD
        │           │          │
        └───────────┴──────────┴──▶ DESTROYING ──▶ (forgotten)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any
from uuid import UUID

from daemonkit.faults import Refused
from protect.host.idmap import IdMapping
from protect.toolstack.port import DomainId, DomainKernel, Mode


class ZoneState(Enum):
    """What a zone does."""

    CREATING = "creating"
    RUNNING = "running"
    DEAD = "dead"
    DESTROYING = "destroying"


NEXT: Mapping[ZoneState, frozenset[ZoneState]] = {
    ZoneState.CREATING: frozenset({ZoneState.RUNNING, ZoneState.DESTROYING}),
    ZoneState.RUNNING: frozenset({ZoneState.DEAD, ZoneState.DESTROYING}),
    ZoneState.DEAD: frozenset({ZoneState.DESTROYING}),
    # Again: a destroy that failed half-way is tried again.
    ZoneState.DESTROYING: frozenset({ZoneState.DESTROYING}),
}


@dataclass(frozen=True, slots=True)
class ZoneSpec:
    """A zone to launch, validated, with every default applied."""

    id: str
    name: str
    hostname: str
    profile: str
    memory_bytes: int
    vcpus: int
    mode: Mode
    interfaces: int = 0
    netns: str = ""
    """Where the host's end of the interface begins; "" for the host's own namespace."""
    sysctls: Mapping[str, str] = field(default_factory=dict)
    id_mapping: IdMapping | None = None
    """Of the user namespace that its workloads can have."""
    kernel: DomainKernel | None = None
    """None: the toolstack's own."""


@dataclass(frozen=True, slots=True)
class Zone:
    """A zone as it is now.  Times are ns since the epoch, 0 for "not yet"."""

    spec: ZoneSpec
    uuid: UUID
    state: ZoneState
    created_at_ns: int
    domain_id: DomainId = DomainId(0)
    boot_id: str = ""
    agent_version: str = ""
    death_reason: str = ""
    died_at_ns: int = 0

    @property
    def id(self) -> str:
        return self.spec.id

    def to(self, state: ZoneState, **changes: Any) -> Zone:
        """The zone in another state; Refused when the table does not allow it."""
        if state not in NEXT[self.state]:
            raise Refused("change zone", self.id, f"it is {self.state.value} and cannot be {state.value}")
        return replace(self, state=state, **changes)
