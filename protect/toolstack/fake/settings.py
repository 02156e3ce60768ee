"""Settings of the fake toolstack (``[fake]`` in protectd.toml), and facts of this machine for it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from daemonkit.config import Bytes, at_least, longer_than_nothing
from daemonkit.convert import WrongKey
from daemonkit.faults import Invalid
from protect.model.checks import seclabel
from protect.model.toolstack import Capabilities, PhysicalInfo

MIB = 1 << 20
_USERS = Path("/proc/self/ns/user")
_SELINUX = Path("/sys/fs/selinux/enforce")
_MOST_USERS = Path("/proc/sys/user/max_user_namespaces")


@dataclass(frozen=True, slots=True)
class FakeSettings:
    """``memory`` is what all zones may have together; 0 means this machine's less ``reserve``.

    ``hvm``, ``hap``, ``iommu`` and ``hypervisor_version`` are what it says it has, for tests of what asks;
    ``domain_overhead`` is what it says it takes for a domain beside its memory;
    so are ``seclabels``, the labels of its policy: with none it has no FLASK.
    """

    memory: Bytes = Bytes(0)
    reserve: Bytes = Bytes(1024 * MIB)
    hvm: bool = False
    hap: bool = False
    iommu: bool = False
    hypervisor_version: str = ""
    seclabels: tuple[str, ...] = ()
    domain_overhead: Bytes = Bytes(0)
    domains_most: int = 0
    """Room for so many domains; 0: for any number."""
    disk_memory: Bytes = Bytes(0)
    """What a disk is said to take of its domain's memory."""
    pids_limit: int = 4096
    """Most processes and threads of one zone."""
    launch_seconds: float = 30.0
    """Seconds within which a zone's first process must have started."""

    def __post_init__(self) -> None:
        at_least(1, self, "pids_limit")
        longer_than_nothing(self, "launch_seconds")
        if self.hypervisor_version and not re.fullmatch(r"\d{1,4}\.\d{1,4}", self.hypervisor_version):
            raise WrongKey("hypervisor_version", f"{self.hypervisor_version!r:.80} is not <major>.<minor>")
        for label in self.seclabels:
            try:
                seclabel("read configuration", label)
            except Invalid as fault:
                raise WrongKey("seclabels", str(fault)) from None

    @property
    def capabilities(self) -> Capabilities:
        """What this toolstack claims it can do; zones are namespaces in every mode."""
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
