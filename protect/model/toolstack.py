"""The port to a hypervisor: the one seam between zones and Xen.

Two implementations ship: ``protect.toolstack.libxl`` (Xen) and ``protect.toolstack.fake`` (Linux
namespaces, no security boundary).  ``tests/contract/test_toolstack.py`` runs one suite on both.
Nothing above this module may ask which of them it talks to.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol
from uuid import UUID

from protect.model.domain.boot import DomainKernel as DomainKernel
from protect.model.domain.resizing import DomainId as DomainId
from protect.model.domain.resizing import Resizable
from protect.model.domain.shares import DiskRates
from protect.model.lifetime import DomainDeath as DomainDeath
from protect.model.lifetime import ShareEnd as ShareEnd
from protect.model.lifetime import ShutdownReason as ShutdownReason
from protect.model.room.host import Capabilities as Capabilities
from protect.model.room.host import HostPort
from protect.model.room.host import Mode as Mode
from protect.model.room.host import PhysicalInfo as PhysicalInfo
from protect.model.transport import Transport

MARK_LIMIT = 2048
"""Characters of a mark: xenstore takes 4096 bytes, with the node's path."""


@dataclass(frozen=True, slots=True)
class DomainSpec:
    """A domain to create, made from a ``ZoneSpec``: only what a hypervisor has to know.

    ``environment`` reaches the agent as environment variables (on Xen by way of the kernel's command line, so
    names and values are ``[A-Za-z0-9_./:=-]`` without blanks, names without dots).  Interfaces appear in the
    guest as ``eth0`` ...; their host ends are put into the network namespace at ``netns``, "" for the host's.

    ``shared``: a mount namespace (an absolute path of its nsfs file, namespaces(7)).  After ``share`` the
    guest sees its root directory at ``/run/xenpod/shared``, and follows mounts and unmounts in it.  The root
    is a shared mount (mount_namespaces(7)) and read-only.  The namespace stays the caller's, and has to
    outlive the domain.  The guest writes to its writable parts as the host's root; read-only parts stay
    read-only if there is a security boundary.  None: there is no such directory.

    The agent learns how to reach it from ``XENPOD_SHARED``, which the toolstack sets: ``vchan``, a server to
    mount when told to (MountShared of channel.proto), or ``fd:<number>``, a mount to attach when it starts.
    """

    uuid: UUID
    name: str
    """The name, from ``domain_name``, by which a restarted toolstack recognizes its domains."""
    memory_bytes: int
    """Memory at the start; ``vcpus`` likewise."""
    vcpus: int = 1
    mode: Mode = Mode.PV
    interfaces: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    netns: str = ""
    shared: Path | None = None
    kernel: DomainKernel | None = None
    """None: the toolstack's own kernel.  Another one is Refused where PhysicalInfo.kernels is false, and its
    files have to stay until the domain is gone."""
    seclabel: str = ""
    """A security context of the hypervisor's policy; "": the hypervisor's default."""
    mark: str = ""  # kept with the domain from its first moment (MARK_LIMIT); its guest may read it
    memory_max_bytes: int = 0
    """The most memory that it can get while it runs; ``vcpus_max`` likewise.  0: that of the start."""
    vcpus_max: int = 0
    cpupool: str = ""
    """The hypervisor's pool of CPUs that it runs on; "": the default pool."""
    passthrough: bool = False
    """Whether it can be given PCI functions, which costs the hypervisor page tables for its IOMMU."""

    @property
    def most_memory(self) -> int:
        return max(self.memory_bytes, self.memory_max_bytes)

    @property
    def most_vcpus(self) -> int:
        return max(self.vcpus, self.vcpus_max)


class DomainState(Enum):
    """State of a domain."""

    PAUSED = "paused"
    RUNNING = "running"
    SHUTDOWN = "shutdown"
    """It has ended by itself, and waits to be destroyed."""


@dataclass(frozen=True, slots=True)
class DomainInfo:
    """A domain as the hypervisor sees it.

    ``memory_bytes``: the memory that it may have.  ``held_bytes``: the memory that it has, which is more
    while it gives back what was taken from it.  ``vcpus``: the most that it can have; ``vcpus_online``: how
    many of them its guest runs.
    """

    id: DomainId
    uuid: UUID
    name: str
    state: DomainState
    memory_bytes: int
    vcpus: int
    cpu_time_ns: int
    shutdown_reason: ShutdownReason | None = None
    mark: str = ""  # of its spec; "": it has none, or has lost it
    held_bytes: int = 0
    vcpus_online: int = 0


@dataclass(frozen=True, slots=True)
class DiskSpec:
    """A read-only or writable disk: ``path`` is a file or a block device, ``vdev`` e.g. ``xvda``.

    From ``xvdza`` on, names are the toolstack's own, except ``xvdzy``.  ``exclusive``: a block device of the
    host that neither the host nor other zones may use meanwhile; if it is read-only others may read it, too.
    """

    vdev: str
    path: Path
    readonly: bool = True
    exclusive: bool = False


class Toolstack(HostPort, Resizable, Protocol):
    """Domains and their devices.  Errors are ``protect.model.errors`` (ToolstackError and kin).

    Methods raise DomainGone for a domain that has ended or never existed, with these exceptions: ``destroy``,
    ``detach_disk`` and ``detach_pci`` succeed, and ``console`` still has the console of a domain that ended.

    A cancelled method finishes the step that it has begun; then its caller gets CancelledError, can find what
    was made with ``list``, and remove it with ``destroy``.  Only ``open_channel`` stops at once.  So callers
    never wrap these calls to protect them.
    """

    name: str
    """``libxl`` or ``fake``.  To be shown, never to branch on."""

    async def start(self) -> None:
        """Connect, adopt what exists, begin to watch."""

    async def close(self) -> None:
        """Wait for the steps under way, then stop watching.  Domains go on."""
        ...

    async def physical_info(self) -> PhysicalInfo: ...

    def capabilities(self) -> Capabilities:
        """What the hypervisor can do; known once ``start`` has returned."""

    async def has_seclabel(self, label: str) -> bool:
        """Whether the hypervisor's present policy knows the label; false without FLASK."""

    async def create(self, spec: DomainSpec) -> DomainId:
        """Create the domain, paused.  If this fails, nothing of the domain is left.

        Exists: its name or uuid is taken.  Exhausted: the host lacks the memory.  Missing: ``netns``,
        ``shared`` or ``cpupool`` does not exist.  Invalid: its kernel is no kernel or cannot boot in its
        mode, or the policy lacks its label.  Refused: the host does not support a kernel of its own, labels,
        or its mode (``capabilities``).
        """
        ...

    async def pause(self, domain: DomainId) -> None:
        """Stop all of the domain until it is unpaused or destroyed.  Idempotent."""
        ...

    async def unpause(self, domain: DomainId) -> None:
        """Let the domain run.  Idempotent."""
        ...

    async def set_disk_rates(self, domain: DomainId, rates: DiskRates) -> None:
        """Limit its present disks, and those attached before a restart.  Refused: see ``capabilities``."""

    def abandon(self, domain: DomainId) -> None:
        """Stop waiting for the domain's guest, since its end is declared; an unknown domain is fine."""
        ...

    async def destroy(self, domain: DomainId) -> None:
        """End the domain at once, and free all its resources; an unknown domain succeeds."""

    async def list(self) -> list[DomainInfo]:
        """All guest domains, ours and others (never dom0)."""
        ...

    async def find(self, uuid: UUID) -> DomainInfo | None:
        """The domain with this uuid; domain ids may be reused."""

    async def claim(self, uuid: UUID, name: str, mark: str) -> DomainInfo | None:
        """Mark a domain without a mark as ours (after xenstore was lost); None: there is no such domain."""

    async def attach_disk(self, domain: DomainId, disk: DiskSpec) -> None:
        """Attach a disk, which appears as ``/dev/<vdev>`` in the guest.

        Exists: vdev is taken; Invalid: not a name like ``xvda``, or not a file of whole sectors;
        Missing: no such file; Refused: it should be exclusive, and is in use.
        """
        ...

    async def detach_disk(self, domain: DomainId, vdev: str) -> None:
        """Detach a disk, and free what was behind it; an unknown vdev succeeds."""

    async def disks(self, domain: DomainId) -> builtins.list[str]:
        """The vdevs that are attached now."""

    async def attach_pci(self, domain: DomainId, address: str) -> None:
        """Give the domain a PCI function of the host ("0000:65:00.0"), reset.

        Exists: it has it; Missing: there is none; Refused, with the reason: the host or another domain uses
        it, it cannot be reset, there is no IOMMU, or the domain cannot have any (``DomainSpec.passthrough``).
        """
        ...

    async def detach_pci(self, domain: DomainId, address: str) -> None:
        """Take a PCI function back, and reset it; one that the domain does not have succeeds."""
        ...

    async def share(self, domain: DomainId) -> str:
        """Serve the domain's shared directory (``DomainSpec.shared``), unless it is served already.

        Returns the session, by which the agent finds the server; "": the agent need do nothing.  Refused: the
        domain has no such directory.
        """
        ...

    async def host_interface(self, domain: DomainId, index: int) -> str:
        """The name of the host's end of interface ``index``, which is first in the spec's ``netns``.

        Invalid: it has no such interface.
        """
        ...

    async def open_channel(self, domain: DomainId) -> Transport:
        """Open a connection to the agent, once the agent serves one (see docs/channel.md).

        The caller bounds the wait.  DomainGone when the domain ends meanwhile.
        """
        ...

    def deaths(self) -> AsyncIterator[DomainDeath]:
        """Yield the end of each domain once, beginning with domains that have ended and are still listed."""
        ...

    def share_ends(self) -> AsyncIterator[ShareEnd]:
        """Yield the end of each server of a shared directory, beginning with those not replaced yet.

        Servers that ended with their domain are left out.  Users of the directory get errors; the next
        ``share`` begins another session.
        """
        ...

    async def console(self, domain: DomainId, limit: int) -> bytes:
        """The last ``limit`` bytes of a domain's console (untrusted)."""
        ...

    async def forget_console(self, name: str) -> None:
        """Remove the stored console of a domain of ours that is gone, by the domain's name.

        ``destroy`` does this itself, unless the daemon dies in between.
        """

    def console_log(self, domain: DomainId) -> Path:
        """The file that its console is written to (untrusted); it may not exist yet.

        The file grows, and is truncated from its beginning, in place; ``destroy`` removes it.
        """
        ...
