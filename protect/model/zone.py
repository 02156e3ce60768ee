"""A zone: a frozen value and the table of its states.

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
from protect.model.domain.shares import CpuShares, DiskRates
from protect.model.toolstack import DomainId, DomainKernel, Mode
from protect.model.volume import ZoneDevice


class ZoneState(Enum):
    """State of a zone."""

    CREATING = "creating"
    RUNNING = "running"
    DEAD = "dead"
    DESTROYING = "destroying"


NEXT: Mapping[ZoneState, frozenset[ZoneState]] = {
    ZoneState.CREATING: frozenset({ZoneState.RUNNING, ZoneState.DESTROYING}),
    ZoneState.RUNNING: frozenset({ZoneState.DEAD, ZoneState.DESTROYING}),
    ZoneState.DEAD: frozenset({ZoneState.DESTROYING}),
    # A failed destroy is tried again.
    ZoneState.DESTROYING: frozenset({ZoneState.DESTROYING}),
}


class MemoryPolicy(Enum):
    """Whether a zone's memory stays as created and resized, or follows the zone's use."""

    STATIC = "static"
    DYNAMIC = "dynamic"


@dataclass(frozen=True, slots=True)
class ZoneIdMapping:
    """Maps ids 0 to ``length`` - 1 of a user namespace to ``host_id`` and up in the zone."""

    host_id: int
    length: int


SCRATCH_VDEV = "xvdzy"
"""The name of a zone's scratch disk."""


@dataclass(frozen=True, slots=True)
class ZoneSpec:
    """A zone to launch: validated, every default applied, recorded.

    The toolstack gets a ``DomainSpec`` made from the zone's spec: with the domain's name and uuid and the
    host's shared directory, without facts for the agent or protectd (hostname, profile, sysctls, id mapping).
    """

    id: str
    name: str
    hostname: str
    profile: str
    memory_bytes: int
    vcpus: int
    mode: Mode
    interfaces: int = 0
    netns: str = ""
    """Network namespace of the interface's host end; "" for the host's own."""
    sysctls: Mapping[str, str] = field(default_factory=dict)
    id_mapping: ZoneIdMapping | None = None
    """Id mapping for workloads that have a user namespace."""
    kernel: DomainKernel | None = None
    """None: the toolstack's own."""
    shares: CpuShares = CpuShares()
    scratch_bytes: int = 0
    """Size of the scratch disk; 0: none."""
    reservations: tuple[str, ...] = ()
    """Reservations for the zone's memory."""
    seclabel: str = ""
    """Label of the domain in the hypervisor's policy; "" for the hypervisor's choice."""
    device_names: tuple[str, ...] = ()
    """Names of devices of the host to attach at the launch."""
    disk_rates: DiskRates = DiskRates()
    memory_max_bytes: int = 0
    """Maximum that the zone is built for; 0: the size at launch.  ``vcpus_max`` likewise."""
    vcpus_max: int = 0
    hotplug_max_bytes: int = 0
    """Maximum with hot-plug of memory; 0: no hot-plug."""
    memory_policy: MemoryPolicy = MemoryPolicy.STATIC
    memory_min_bytes: int = 0
    """Minimum for a dynamic policy."""
    memory_limit_bytes: int = 0
    """Maximum for a dynamic policy; 0: the built maximum."""
    cpupool: str = ""
    """The hypervisor's pool of CPUs for the zone; "" for the hypervisor's choice."""

    @property
    def built_memory(self) -> int:
        """The memory that the zone is built for, and all memory that was hot-plugged and is in use."""
        return max(self.memory_bytes, self.memory_max_bytes)

    @property
    def most_memory(self) -> int:
        return max(self.built_memory, self.hotplug_max_bytes)

    @property
    def most_vcpus(self) -> int:
        return max(self.vcpus, self.vcpus_max)

    @property
    def policy_limit(self) -> int:
        """Maximum for a dynamic policy: not ``most_memory``, to which only a resize may grow the zone."""
        return min(max(self.memory_limit_bytes or self.built_memory, self.memory_bytes), self.most_memory)


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
    """Kind and cause of the death, one line."""
    died_at_ns: int = 0
    file_volumes: bool = False
    """Whether the agent supports file volumes."""
    anonymous_volumes: bool = False
    """Whether the agent supports anonymous volumes."""
    host_boot: str = ""
    """The boot of the host that made it."""
    resizes: bool = False
    """Whether the agent can report the zone's size."""
    death_kind: str = ""
    """The value of its ``DeathKind``; "" if it lives."""
    console: str = ""
    """Of a dead zone: the last lines of its console, as plain text."""
    devices: tuple[ZoneDevice, ...] = ()
    """Devices of the host in the zone, also during attach and detach."""

    @property
    def id(self) -> str:
        return self.spec.id

    def to(self, state: ZoneState, **changes: Any) -> Zone:
        """The zone in another state.  Refused: the table does not allow the change."""
        if state not in NEXT[self.state]:
            raise Refused("change zone", self.id, f"it is {self.state.value} and cannot be {state.value}")
        return replace(self, state=state, **changes)


@dataclass(frozen=True, slots=True)
class GuestRoute:
    """A route of a guest: ``destination`` in CIDR notation; ``gateway`` "" for a route on the link."""

    destination: str
    gateway: str


@dataclass(frozen=True, slots=True)
class GuestNetwork:
    """A guest's network: ``mac`` is 6 bytes, ``addresses`` in CIDR notation, ``routes`` in working order."""

    mac: bytes
    mtu: int
    addresses: tuple[str, ...]
    routes: tuple[GuestRoute, ...]


def domain_name(label: str, uuid: UUID) -> str:
    """The name of a zone's domain, ``<label>.<8 hex digits>``, unlike names of other virtual machines.

    ``label`` is for people: cut at 32 characters, with "-" for characters that Xen's files cannot have.
    """
    readable = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in label)
    return f"{readable[:32]}.{uuid.hex[:8]}"


def is_zone_domain(name: str, uuid: UUID) -> bool:
    """Whether ``domain_name`` can have made the name.  protectd must not touch domains with other names."""
    return name.endswith(f".{uuid.hex[:8]}")
