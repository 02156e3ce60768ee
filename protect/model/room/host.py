"""The host as zones see it: what it can do, who has its memory, and what it has room for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol
from uuid import UUID


class Mode(Enum):
    """Virtualisation mode of a domain."""

    PV = "pv"
    PVH = "pvh"


@dataclass(frozen=True, slots=True)
class PhysicalInfo:
    """The host: the memory that zones can have in all, and that no domain has now."""

    total_memory_bytes: int
    free_memory_bytes: int
    cpus: int
    version: str
    security_boundary: bool
    notices: tuple[str, ...] = ()
    user_namespaces: bool = False
    """Whether the guests' kernel has user namespaces."""
    selinux: bool = False
    """Whether the guests' kernel enforces an SELinux policy.  An agent loads none."""
    kernels: bool = False
    """Whether guests can have kernels of their own."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the hypervisor can do on this machine; constant while it runs.

    ``hvm``: guests with hardware-assisted virtualisation (PVH); ``hap``: such guests with hardware-assisted
    paging; ``iommu``: one is in use, so devices can be handed out safely.  ``hypervisor_version`` is
    "<major>.<minor>" of Xen, "" where there is none.  ``kernel_modes``: in which the toolstack's own kernel
    can boot.  ``flask``: the hypervisor has that security module, so domains can have labels.
    ``disk_rates``: those of disks can be held.  ``numa_nodes``: how many there are; 0: nobody says.
    """

    pv: bool = True
    hvm: bool = False
    hap: bool = False
    iommu: bool = False
    hypervisor_version: str = ""
    kernel_modes: frozenset[Mode] = frozenset(Mode)
    flask: bool = False
    disk_rates: bool = False
    numa_nodes: int = 0
    own_clocks: bool = False
    """Each guest has its own clock, which its agent may set; false: it is the host's, which nobody sets."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Who has the host's memory, in bytes.

    ``domains``: of each guest, by uuid, with what the hypervisor takes for it; read before ``free``, so that
    what a domain takes meanwhile is missing from both and in neither twice.  ``sharing``: what the servers of
    shared directories may use of dom0's.
    """

    free: int
    domains: Mapping[UUID, int]
    dom0: int = 0
    sharing: int = 0


@dataclass(frozen=True, slots=True)
class HostWants:
    """What the configuration wants of the host: so many zones, of so many disks, and devices of PCI."""

    zones: int
    disks_per_zone: int
    pci: bool = False


@dataclass(frozen=True, slots=True)
class HostNotice:
    """A setting that is not as zones need it: what it is, "" if it is not set, and what it should be.

    ``place`` says where it is set, ``effect`` what happens as it is.
    """

    setting: str
    place: str
    value: str
    wanted: str
    effect: str

    @property
    def text(self) -> str:
        value = f"is {self.value}" if self.value else "is not set"
        return f"{self.setting} {value}: {self.effect}; set it to {self.wanted} ({self.place})"


@dataclass(frozen=True, slots=True)
class ZoneRoom:
    """How many domains the hypervisor has room for beside memory, and what bounds them; 0: nothing does."""

    domains: int = 0
    bound: str = ""


@dataclass(frozen=True, slots=True)
class DiskLimit:
    """How many disks a domain can have, and what bounds them, with the numbers."""

    disks: int
    bound: str


class HostPort(Protocol):
    """What a toolstack says of the host's room, beside ``physical_info`` and ``capabilities``."""

    async def memory(self) -> HostMemory:
        """Who has the host's memory now; quick, since it is asked before every create."""
        ...

    def overhead_bytes(self, memory_bytes: int, vcpus: int, mode: Mode) -> int:
        """What the hypervisor takes at most for a domain beside its memory."""
        ...

    async def preflight(self, wants: HostWants) -> tuple[HostNotice, ...]:
        """The host's settings that are not as they should be."""
        ...

    def room(self, disks_per_zone: int) -> ZoneRoom:
        """For domains of so many disks; constant while the hypervisor runs."""
        ...

    def disk_limit(self, memory_bytes: int, vcpus: int) -> DiskLimit:
        """How many disks a domain of this size can afford, those of a kernel's addons aside."""
        ...
