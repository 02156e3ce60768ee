"""Settings of the fake toolstack (``[fake]`` in protectd.toml), and facts of this machine for it."""

from __future__ import annotations

import builtins
import os
import re
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from daemonkit.config import Bytes, at_least, longer_than_nothing
from daemonkit.convert import WrongKey
from daemonkit.faults import Invalid
from protect.model.capacity.host_resources import (
    DiskLimit,
    HostMemory,
    HostNotice,
    HostWants,
    Mode,
    ZoneCapacity,
)
from protect.model.checks import seclabel
from protect.model.toolstack import Capabilities, DomainSpec, PhysicalInfo
from protect.model.volume import PCI_ADDRESS
from protect.toolstack.fake.faultplan import FaultInjector

MIB = 1 << 20
_NAMES = 676
"""Number of disk names from xvda to xvdyz."""
_USERS = Path("/proc/self/ns/user")
_SELINUX = Path("/sys/fs/selinux/enforce")
_MOST_USERS = Path("/proc/sys/user/max_user_namespaces")


@dataclass(frozen=True, slots=True)
class FakeSettings:
    """``memory`` is the memory of all zones together; 0 means this machine's memory less ``reserve``.

    Tests set simulated features: ``hvm``, ``hap``, ``iommu`` and ``hypervisor_version``; ``domain_overhead``,
    the memory of a domain beside its own; ``seclabels``, the labels of the policy (none: no FLASK);
    ``cpupools``; ``pci``, the addresses of functions.  An attached function is only a record.
    """

    memory: Bytes = Bytes(0)
    reserve: Bytes = Bytes(1024 * MIB)
    hvm: bool = False
    hap: bool = False
    iommu: bool = False
    hypervisor_version: str = ""
    seclabels: tuple[str, ...] = ()
    cpupools: tuple[str, ...] = ()
    pci: tuple[str, ...] = ()
    domain_overhead: Bytes = Bytes(0)
    domains_most: int = 0
    """Maximum number of domains; 0: no limit."""
    disk_memory: Bytes = Bytes(0)
    """Simulated memory of a domain that one disk takes."""
    pids_limit: int = 4096
    """Maximum number of processes and threads in one zone."""
    launch_seconds: float = 30.0
    """Seconds within which a zone's first process must have started."""

    def __post_init__(self) -> None:
        at_least(1, self, "pids_limit")
        at_least(0, self, "domain_overhead", "domains_most", "disk_memory")
        longer_than_nothing(self, "launch_seconds")
        if self.hypervisor_version and not re.fullmatch(r"\d{1,4}\.\d{1,4}", self.hypervisor_version):
            raise WrongKey("hypervisor_version", f"{self.hypervisor_version!r:.80} is not <major>.<minor>")
        for address in self.pci:
            if not PCI_ADDRESS.fullmatch(address):
                raise WrongKey("pci", f"{address!r:.80} is not a PCI address such as 0000:65:00.0")
        for label in self.seclabels:
            try:
                seclabel("read configuration", label)
            except Invalid as fault:
                raise WrongKey("seclabels", str(fault)) from None

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities from the settings; zones are namespaces in every mode."""
        flask = bool(self.seclabels)
        return Capabilities(True, self.hvm, self.hap, self.iommu, self.hypervisor_version, flask=flask)

    @property
    def zone_memory(self) -> int:
        """Bytes of memory for all zones together."""
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return self.memory or machine - self.reserve


def physical_info(total: int, free: int, notice: str) -> PhysicalInfo:
    """Facts of this machine; ``total`` and ``free`` are bytes of memory for zones."""
    return PhysicalInfo(
        total,
        free,
        len(os.sched_getaffinity(0)),
        f"fake on Linux {os.uname().release}",
        security_boundary=False,
        notices=(notice,),
        user_namespaces=_user_namespaces(),
        selinux=_SELINUX.exists(),
    )


def _user_namespaces() -> bool:
    """Whether this kernel allows user namespaces (namespaces(7))."""
    return _USERS.exists() and int(_MOST_USERS.read_text()) > 0


class SaysCapacity:
    """The port's part about the host's room.  The settings have all figures: tests can simulate any host."""

    _settings: FakeSettings
    _faults: FaultInjector

    def _specs(self) -> builtins.list[DomainSpec]:
        raise NotImplementedError

    async def memory(self) -> HostMemory:
        domains = {spec.uuid: spec.memory_bytes + self._settings.domain_overhead for spec in self._specs()}
        foreign = self._faults.foreign_memory()
        # A foreign domain: no zone of protectd has this uuid.
        foreign_domains = {UUID(int=0): foreign} if foreign else {}
        free = 0 if self._faults.exhausted() else self._settings.zone_memory - foreign - sum(domains.values())
        return HostMemory(max(0, free), domains | foreign_domains)

    def overhead_bytes(self, memory_bytes: int, vcpus: int, mode: Mode) -> int:
        return self._settings.domain_overhead

    async def preflight(self, wants: HostWants) -> tuple[HostNotice, ...]:
        most = self._settings.domains_most
        if not 0 < most < wants.zones:
            return ()
        effect = f"{most} zones fit, limits.zones of protectd.toml is {wants.zones}"
        return (HostNotice("fake.domains_most", "protectd.toml", str(most), str(wants.zones), effect),)

    def capacity(self, disks_per_zone: int) -> ZoneCapacity:
        most = self._settings.domains_most
        return ZoneCapacity(most, f"fake.domains_most is {most}") if most else ZoneCapacity()

    def disk_limit(self, memory_bytes: int, vcpus: int) -> DiskLimit:
        if not (each := self._settings.disk_memory):
            return DiskLimit(_NAMES, "there are no more names")
        bound = f"each takes {each} bytes (fake.disk_memory), and of its {memory_bytes} half are for disks"
        return DiskLimit(memory_bytes // 2 // each, bound)
