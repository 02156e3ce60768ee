"""Runtime handlers (``[handlers.NAME]`` of cri.toml): the meaning of a RuntimeClass on this host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from cri.config.requirements import Requirement, RequirementKind, requirement
from daemonkit.config import Bytes, at_least, at_most
from daemonkit.convert import WrongKey
from daemonkit.faults import Invalid
from images.registry import names

DEFAULT_HANDLER = "xenpod"
MEMORY = "xenpod.dev/memory"
VCPUS = "xenpod.dev/vcpus"
KERNEL = "xenpod.dev/kernel"
DEVICES = "xenpod.dev/devices"
EPHEMERAL_STORAGE = "xenpod.dev/ephemeral-storage"
EMPTY_DIRS = "xenpod.dev/empty-dirs"
DISK_RATES: Mapping[str, str] = {
    "xenpod.dev/disk-read-rate": "disk_read_rate",
    "xenpod.dev/disk-write-rate": "disk_write_rate",
    "xenpod.dev/disk-read-operations": "disk_read_operations",
    "xenpod.dev/disk-write-operations": "disk_write_operations",
}
"""By annotation, the handler's key that the annotation can lower."""
ANNOTATIONS = (MEMORY, VCPUS, KERNEL, DEVICES, *DISK_RATES, EPHEMERAL_STORAGE, EMPTY_DIRS)
"""All our annotations of pods."""

_DEVICE = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
_PROFILE = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_SECLABEL = re.compile(r"(?=.{1,255}\Z)[A-Za-z0-9_.-]+(?::[A-Za-z0-9_.,-]+){2,4}")
_CPUPOOL = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_MOST_VCPUS = 1024
MOST_RATE_PER_SECOND = 2**50


class HostNamespaces(Enum):
    """Reply to a pod that asks for the host's processes or IPC: an error, or the zone's namespaces."""

    REFUSE = "refuse"
    ZONE = "zone"


class EmptyDirPlace(Enum):
    """Place of an emptyDir on disk: in the memory of the pod's zone, or on the host, shared with the zone."""

    ZONE = "zone"
    HOST = "host"


class HandlerMode(Enum):
    """Virtualisation mode of zones: the profile's, PV, PVH, or PVH with PV as fallback."""

    PROFILE = "profile"
    PV = "pv"
    PVH = "pvh"
    AUTO = "auto"


class Reserve(Enum):
    """A zone's host memory at first: the limit of its pod, or ``memory`` of its handler."""

    LIMIT = "limit"
    REQUEST = "request"


class HandlerMemoryPolicy(Enum):
    """Whether a zone's memory is constant, or follows the zone's use."""

    STATIC = "static"
    DYNAMIC = "dynamic"


@dataclass(frozen=True, slots=True)
class HandlerConfig:
    """The zones of a runtime handler: mode, kernel, size, the pods' choices, and the host's requirements.

    Empty strings leave a choice to protectd: ``kernel``, protectd's own; ``seclabel``, a context of the
    hypervisor's FLASK policy; ``cpupool``, a pool of CPUs.  ``memory`` and ``vcpus`` are for pods that set no
    limit; for these two and the bounds, 0 means the profile's value.  Sizes are of whole zones, including
    their kernels; headrooms are limits of growth.  ``spoof_check``: zones send and see only frames of the
    pod's own addresses.

    ``empty_dir_size``: size of each emptyDir in the zone in place of an emptyDir on disk; 0: half of the
    zone's memory, or no limit on a scratch disk.  ``scratch_size``: size of the scratch disk, 0 for the
    profile's.  Bandwidths: a pod's maximum in bits per second, 0 for no limit.  Disk rates: the maximum of
    each of the zone's disks, in bytes and operations a second, 0 for no limit.  ``devices``: names of host
    devices in every zone.
    """

    profile: str = "default"
    mode: HandlerMode = HandlerMode.PROFILE
    kernel: str = ""
    seclabel: str = ""
    host_namespaces: HostNamespaces = HostNamespaces.REFUSE
    reserve: Reserve = Reserve.LIMIT
    memory: Bytes = Bytes(0)
    memory_min: Bytes = Bytes(0)
    memory_max: Bytes = Bytes(0)
    vcpus: int = 0
    vcpus_max: int = 0
    memory_headroom: Bytes = Bytes(0)
    vcpus_headroom: int = 0
    memory_policy: HandlerMemoryPolicy = HandlerMemoryPolicy.STATIC
    cpupool: str = ""
    spoof_check: bool = True
    empty_dir: EmptyDirPlace = EmptyDirPlace.ZONE
    empty_dir_size: Bytes = Bytes(0)
    scratch_size: Bytes = Bytes(0)
    ingress_bandwidth: int = 0
    egress_bandwidth: int = 0
    disk_read_rate: Bytes = Bytes(0)
    disk_write_rate: Bytes = Bytes(0)
    disk_read_operations: int = 0
    disk_write_operations: int = 0
    annotations: tuple[str, ...] = (KERNEL,)
    requires: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()

    NOT_YET: ClassVar[Mapping[str, str]] = {
        "sharing": "there is one way in which zones share the host's files, and nothing to choose",
    }

    def __post_init__(self) -> None:
        if not _PROFILE.fullmatch(self.profile):
            raise WrongKey("profile", f"{self.profile!r:.80} is not 1 to 64 of [a-z0-9-]")
        if self.reserve is Reserve.REQUEST and not self.memory:
            raise WrongKey("reserve", '"request" needs "memory" as well: that is what zones begin with')
        self._check_sizes()
        if self.kernel:
            try:
                names.parse(self.kernel)
            except Invalid as fault:
                raise WrongKey("kernel", str(fault)) from None
        if self.seclabel and not _SECLABEL.fullmatch(self.seclabel):
            raise WrongKey("seclabel", f"{self.seclabel!r:.80} is not user:role:type, of [A-Za-z0-9_.,:-]")
        if self.cpupool and not _CPUPOOL.fullmatch(self.cpupool):
            raise WrongKey("cpupool", f"{self.cpupool!r:.80} is not 1 to 64 of [A-Za-z0-9_.:-]")
        for name in self.devices:
            if not _DEVICE.fullmatch(name):
                raise WrongKey("devices", f"{name!r:.80} is not 1 to 63 of [a-z0-9._-]")
        for key in self.annotations:
            if key not in ANNOTATIONS:
                raise WrongKey("annotations", f"{key!r:.80} is none of {', '.join(ANNOTATIONS)}")
        try:
            tuple(map(requirement, self.requires))
        except ValueError as error:
            raise WrongKey("requires", str(error)) from None

    def _check_sizes(self) -> None:
        at_least(0, self, "memory", "memory_min", "memory_max", "vcpus", "vcpus_max", "empty_dir_size")
        at_least(0, self, "memory_headroom", "vcpus_headroom", "scratch_size")
        at_least(0, self, "ingress_bandwidth", "egress_bandwidth", *DISK_RATES.values())
        at_most(MOST_RATE_PER_SECOND, self, *DISK_RATES.values())
        at_most(_MOST_VCPUS, self, "vcpus", "vcpus_max", "vcpus_headroom")
        pairs = (("memory_min", "memory"), ("memory", "memory_max"), ("memory_min", "memory_max"))
        for less, more in (*pairs, ("vcpus", "vcpus_max")):
            if 0 < getattr(self, more) < getattr(self, less):
                raise WrongKey(less, f"{getattr(self, less)} is more than {more}, {getattr(self, more)}")

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        """``requires`` as requirements."""
        return tuple(map(requirement, self.requires))

    @property
    def asks_host(self) -> bool:
        """Whether the handler needs host features beyond the needs of its profile."""
        plain = self.mode is HandlerMode.PROFILE and not self.has_disk_rates
        return bool(self.requires or self.seclabel or self.devices) or not plain

    @property
    def has_disk_rates(self) -> bool:
        """Whether the host has to enforce rates on its zones' disks."""
        return any(getattr(self, key) for key in DISK_RATES.values())

    @property
    def needs_fresh_facts(self) -> bool:
        """Whether the handler needs facts that change while the host runs: devices, and a policy's labels."""
        return bool(self.seclabel or self.devices) or any(
            one.kind is RequirementKind.DEVICE for one in self.requirements
        )
