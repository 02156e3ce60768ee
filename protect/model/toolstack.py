"""The port to a hypervisor: the one seam between zones and Xen.

Two implementations ship: ``protect.toolstack.libxl`` (Xen) and ``protect.toolstack.fake`` (Linux
namespaces, no security boundary).  ``tests/contract/test_toolstack.py`` runs one suite on both.
Modules above this port must not ask for the implementation.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol
from uuid import UUID

from protect.model.capacity.host_resources import Capabilities as Capabilities
from protect.model.capacity.host_resources import HostPort
from protect.model.capacity.host_resources import Mode as Mode
from protect.model.capacity.host_resources import PhysicalInfo as PhysicalInfo
from protect.model.domain.boot import DomainKernel as DomainKernel
from protect.model.domain.resizing import DomainId as DomainId
from protect.model.domain.resizing import Resizable
from protect.model.domain.shares import DiskRates
from protect.model.lifetime import DomainDeath as DomainDeath
from protect.model.lifetime import ShareEnd as ShareEnd
from protect.model.lifetime import ShutdownReason as ShutdownReason
from protect.model.transport import Transport

MARK_LIMIT = 2048
"""Most characters of a mark: xenstore takes 4096 bytes, with the node's path."""


@dataclass(frozen=True, slots=True)
class DomainSpec:
    """A domain to create, made from a ``ZoneSpec``, with only the facts for the hypervisor.

    ``environment``: environment variables of the agent.  Xen passes them on the kernel's command line: names
    and values are ``[A-Za-z0-9_./:=-]`` without blanks, names without dots.  Interfaces appear in the guest
    as ``eth0`` ...; their host ends go into the network namespace at ``netns``, "" for the host's.

    ``shared``: a mount namespace (an absolute path of its nsfs file, namespaces(7)).  After ``share`` the
    guest sees its root directory at ``/run/xenpod/shared``, and follows mounts and unmounts in it.  The root
    is a shared mount (mount_namespaces(7)) and read-only.  The namespace belongs to the caller, and has to
    outlive the domain.  The guest writes to writable parts as the host's root; read-only parts stay
    read-only if the toolstack has a security boundary.  None: no shared directory.

    The toolstack sets ``XENPOD_SHARED`` for the agent: ``vchan``, a server to mount at MountShared
    (channel.proto), or ``fd:<number>``, a mount to attach at the agent's start.
    """

    uuid: UUID
    name: str
    """Made by ``domain_name``; a restarted toolstack recognizes its domains by the name."""
    memory_bytes: int
    """Memory at the start; ``vcpus`` likewise."""
    vcpus: int = 1
    mode: Mode = Mode.PV
    interfaces: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    netns: str = ""
    shared: Path | None = None
    kernel: DomainKernel | None = None
    """None: the toolstack's own kernel.  Another kernel is Refused if PhysicalInfo.kernels is false; its
    files have to stay until the domain is gone."""
    seclabel: str = ""
    """A security context of the hypervisor's policy; "": the hypervisor's default."""
    mark: str = ""  # kept with the domain from its first moment (MARK_LIMIT); its guest may read it
    memory_max_bytes: int = 0
    """Maximum memory that the domain is built for; ``vcpus_max`` likewise.  0: the memory at the start."""
    vcpus_max: int = 0
    hotplug_max_bytes: int = 0
    """Maximum memory with hot-plug, if ``hotplugs_memory`` of the kernel.  0: no hot-plug."""
    cpupool: str = ""
    """The hypervisor's pool of CPUs for the domain; "": the default pool."""
    passthrough: bool = False
    """Whether the domain can get PCI functions.  This costs the hypervisor page tables for the IOMMU."""

    @property
    def built_memory(self) -> int:
        """The memory that the domain is built for: the guest's kernel describes its pages from the start."""
        return max(self.memory_bytes, self.memory_max_bytes)

    @property
    def most_memory(self) -> int:
        return max(self.built_memory, self.hotplug_max_bytes)

    @property
    def most_vcpus(self) -> int:
        return max(self.vcpus, self.vcpus_max)


class DomainState(Enum):
    """State of a domain."""

    PAUSED = "paused"
    RUNNING = "running"
    SHUTDOWN = "shutdown"
    """Ended by itself, not destroyed yet."""


@dataclass(frozen=True, slots=True)
class DomainInfo:
    """A domain as the hypervisor sees it.

    ``memory_bytes``: the allowed memory.  ``held_bytes``: the present memory, which is larger while the guest
    gives memory back.  ``vcpus``: maximum; ``vcpus_online``: number of vCPUs that the guest runs.
    """

    id: DomainId
    uuid: UUID
    name: str
    state: DomainState
    memory_bytes: int
    vcpus: int
    cpu_time_ns: int
    shutdown_reason: ShutdownReason | None = None
    mark: str = ""  # of the domain's spec; "": never set, or lost
    held_bytes: int = 0
    vcpus_online: int = 0


@dataclass(frozen=True, slots=True)
class DiskSpec:
    """A read-only or writable disk: ``path`` is a file or a block device, ``vdev`` e.g. ``xvda``.

    Names from ``xvdza`` on belong to the toolstack, except ``xvdzy``.  ``exclusive``: a block device of the
    host, used by neither the host nor other zones while attached; if read-only, others may read the device.
    """

    vdev: str
    path: Path
    readonly: bool = True
    exclusive: bool = False


class Toolstack(HostPort, Resizable, Protocol):
    """Domains and their devices.  Errors are ``protect.model.errors`` (ToolstackError and kin).

    Methods raise DomainGone for a domain that has ended or never existed, with exceptions: ``destroy``,
    ``detach_disk`` and ``detach_pci`` succeed, and ``console`` still has the console of an ended domain.

    A cancelled method finishes its present step before the caller gets CancelledError; the caller can then
    find a new domain with ``list`` and remove it with ``destroy``.  Only ``open_channel`` stops at once.
    Callers need no protection against cancellation of their own.
    """

    name: str
    """``libxl`` or ``fake``, for people.  Code must not branch on the name."""

    async def start(self) -> None:
        """Connect, adopt existing domains, begin to watch."""

    async def close(self) -> None:
        """Wait for the steps under way, then stop watching.  Domains go on."""
        ...

    async def physical_info(self) -> PhysicalInfo: ...

    def capabilities(self) -> Capabilities:
        """The hypervisor's capabilities; known after ``start``."""

    async def has_seclabel(self, label: str) -> bool:
        """Whether the hypervisor's present policy knows the label; false without FLASK."""

    async def hotplugs_memory(self, kernel: DomainKernel | None) -> bool:
        """Whether a domain with the kernel takes more memory than the domain was built for.

        None: the toolstack's own kernel.  Missing, Invalid: an unusable kernel.
        """
        ...

    async def create(self, spec: DomainSpec) -> DomainId:
        """Create the domain, paused.  After a failure nothing of the domain is left.

        Exists: the name or uuid is taken.  Exhausted: the host lacks the memory.  Missing: ``netns``,
        ``shared`` or ``cpupool`` does not exist.  Invalid: the kernel is no kernel or cannot boot in the
        mode, or the policy lacks the label.  Refused: the host supports no other kernels, no labels, or not
        the mode (``capabilities``).
        """
        ...

    async def pause(self, domain: DomainId) -> None:
        """Stop the whole domain until ``unpause`` or ``destroy``.  Idempotent."""
        ...

    async def unpause(self, domain: DomainId) -> None:
        """Let the domain run.  Idempotent."""
        ...

    async def set_disk_rates(self, domain: DomainId, rates: DiskRates) -> None:
        """Limit all present disks, also disks from before a restart.  Refused: see ``capabilities``."""

    def abandon(self, domain: DomainId) -> None:
        """Stop waiting for the domain's guest after its declared end.  An unknown domain succeeds."""
        ...

    async def destroy(self, domain: DomainId) -> None:
        """End the domain at once, and free all its resources; an unknown domain succeeds."""

    async def list(self) -> list[DomainInfo]:
        """All guest domains, ours and foreign (never dom0)."""
        ...

    async def find(self, uuid: UUID) -> DomainInfo | None:
        """The domain with this uuid; domain ids may be reused."""

    async def claim(self, uuid: UUID, name: str, mark: str) -> DomainInfo | None:
        """Mark a domain without a mark as ours (after a loss of xenstore); None: no domain has the uuid."""

    async def attach_disk(self, domain: DomainId, disk: DiskSpec) -> None:
        """Attach a disk, in the guest ``/dev/<vdev>``.

        Exists: vdev is taken.  Invalid: not a name like ``xvda``, or not a file of whole sectors.
        Missing: the file does not exist.  Refused: the disk should be exclusive and is in use.
        """
        ...

    async def detach_disk(self, domain: DomainId, vdev: str) -> None:
        """Detach a disk, and free its file or device.  An unknown vdev succeeds."""

    async def disks(self, domain: DomainId) -> builtins.list[str]:
        """The attached vdevs."""

    async def attach_pci(self, domain: DomainId, address: str) -> None:
        """Give the domain a PCI function of the host ("0000:65:00.0"), reset.

        Exists: the domain has the function.  Missing: the host lacks the function.  Refused, with the reason:
        the host or another domain uses the function, the function cannot be reset, the host has no IOMMU, or
        the domain cannot have functions (``DomainSpec.passthrough``).
        """
        ...

    async def detach_pci(self, domain: DomainId, address: str) -> None:
        """Take a PCI function back, and reset the function.  A function outside the domain succeeds."""
        ...

    async def share(self, domain: DomainId) -> str:
        """Serve the domain's shared directory (``DomainSpec.shared``).  Idempotent.

        Returns the session, by which the agent finds the server; "": the agent has nothing to do.  Refused:
        the domain has no shared directory.
        """
        ...

    async def host_interface(self, domain: DomainId, index: int) -> str:
        """The name of the host's end of interface ``index``, at first in the spec's ``netns``.

        Invalid: the domain lacks the interface.
        """
        ...

    async def open_channel(self, domain: DomainId) -> Transport:
        """Wait for the agent, and open a connection to it (see docs/channel.md).

        The caller bounds the wait.  DomainGone: the domain ends during the wait.
        """
        ...

    def deaths(self) -> AsyncIterator[DomainDeath]:
        """Yield the end of each domain once, first of ended domains in the list."""
        ...

    def share_ends(self) -> AsyncIterator[ShareEnd]:
        """Yield the end of each server of a shared directory, first of servers without a successor.

        Servers that ended with their domain are left out.  Users of the directory get errors; the next
        ``share`` begins another session.
        """
        ...

    async def console(self, domain: DomainId, limit: int) -> bytes:
        """The last ``limit`` bytes of a domain's console (untrusted)."""
        ...

    async def forget_console(self, name: str) -> None:
        """Remove the stored console of a destroyed domain of ours, by the domain's name.

        Needed only if the daemon dies within ``destroy``, which normally removes the console.
        """

    def console_log(self, domain: DomainId) -> Path:
        """The file of the domain's console (untrusted); the file may not exist yet.

        The file grows, and is truncated from its beginning, in place; ``destroy`` removes the file.
        """
        ...
