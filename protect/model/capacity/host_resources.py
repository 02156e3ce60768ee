"""The host: capabilities, owners of memory, and room for domains and disks."""

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
    """The host: memory for all zones together, and memory that no domain holds now."""

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
    """Whether guests can boot other kernels than the toolstack's."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of the hypervisor on this machine; constant while the hypervisor runs.

    ``hvm``: guests with hardware-assisted virtualisation (PVH).  ``hap``: PVH guests with hardware-assisted
    paging.  ``iommu``: an IOMMU is in use, and devices can be handed out safely.  ``hypervisor_version``:
    "<major>.<minor>" of Xen, "" without Xen.  ``kernel_modes``: modes in which the toolstack's own kernel can
    boot.  ``flask``: the hypervisor has the security module FLASK, and domains can have labels.
    ``disk_rates``: the host can limit rates of disks.  ``numa_nodes``: number of nodes; 0: not known.
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
    """Each guest has its own clock, and its agent may set the clock; false: guests share the host's clock."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Owners of the host's memory, in bytes.

    ``domains``: memory of each guest by uuid, with the hypervisor's overhead.  ``domains`` is read before
    ``free``: memory taken between the two readings is missing from both, and never counted twice.
    ``sharing``: dom0's memory for servers of shared directories.
    """

    free: int
    domains: Mapping[UUID, int]
    dom0: int = 0
    sharing: int = 0


@dataclass(frozen=True, slots=True)
class HostWants:
    """Demands of the configuration on the host: number of zones, disks per zone, PCI devices."""

    zones: int
    disks_per_zone: int
    pci: bool = False


@dataclass(frozen=True, slots=True)
class HostNotice:
    """A setting that is wrong for zones: its value ("": not set), and the wanted value.

    ``place``: where to set the value.  ``effect``: consequence of the present value.
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
class ZoneCapacity:
    """Most domains of the hypervisor apart from memory, and the reason for the bound; 0: no bound."""

    domains: int = 0
    bound: str = ""


@dataclass(frozen=True, slots=True)
class DiskLimit:
    """Most disks of a domain, and the reason for the bound, with the numbers."""

    disks: int
    bound: str


class HostPort(Protocol):
    """A toolstack's facts about room on the host, beside ``physical_info`` and ``capabilities``."""

    async def memory(self) -> HostMemory:
        """Present owners of the host's memory.  Must be quick: every create asks first."""
        ...

    def overhead_bytes(self, memory_bytes: int, vcpus: int, mode: Mode) -> int:
        """Most memory that the hypervisor takes for a domain beside the domain's own memory."""
        ...

    async def preflight(self, wants: HostWants) -> tuple[HostNotice, ...]:
        """Wrong settings of the host."""
        ...

    def capacity(self, disks_per_zone: int) -> ZoneCapacity:
        """Room for domains with ``disks_per_zone`` disks; constant while the hypervisor runs."""
        ...

    def disk_limit(self, memory_bytes: int, vcpus: int) -> DiskLimit:
        """Most disks of a domain of this size, without disks of a kernel's addons."""
        ...
