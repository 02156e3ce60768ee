"""The configuration file of protectd; every key is explained in packaging/protectd.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import ClassVar

from daemonkit.config import (
    Bytes,
    Seconds,
    absolute,
    at_least,
    at_most,
    existing_directory,
    existing_file,
    log_level,
    longer_than_nothing,
    socket_path,
)
from daemonkit.convert import WrongKey
from daemonkit.faults import Invalid
from daemonkit.observe.observe_settings import AuditConfig, MetricsConfig, TracesConfig
from protect.host.named_devices import is_place
from protect.model.capacity.modes import WantedMode
from protect.model.domain.shares import MOST_DISK_RATE, DiskRates
from protect.toolstack.fake.fake_settings import FakeSettings
from protect.toolstack.fake.faultplan import FaultPlan
from protect.toolstack.libxl.settings import LibxlSettings
from xenpod_proto.channel.v1 import channel_pb2 as channel

_MIB = 1 << 20
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
_RATES = ("disk_read_rate", "disk_write_rate", "disk_read_operations", "disk_write_operations")
DEFAULT_PROFILE = "default"
SCRATCH_LEAST = 16 * _MIB
"""Smallest scratch disk."""


class ToolstackKind(Enum):
    """Which hypervisor adapter to build."""

    FAKE = "fake"
    LIBXL = "libxl"


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of all zones together: ``total``; if 0, the host's memory minus ``reserve``."""

    total: Bytes = Bytes(0)
    reserve: Bytes = Bytes(512 * _MIB)
    reservations_only: bool = False
    """Whether only pods with a reservation get zones."""
    policy_period: Seconds = Seconds(5.0)
    """Seconds between looks at zones with the dynamic memory policy."""

    def __post_init__(self) -> None:
        longer_than_nothing(self, "policy_period")


@dataclass(frozen=True, slots=True)
class Profile:
    """The virtualisation mode of zones, and defaults and limits of their size."""

    mode: WantedMode = WantedMode.AUTO
    memory: Bytes = Bytes(256 * _MIB)
    memory_min: Bytes = Bytes(64 * _MIB)
    memory_max: Bytes = Bytes(64 * 1024 * _MIB)
    vcpus: int = 1
    vcpus_max: int = 64
    scratch: Bytes = Bytes(0)
    """Size of scratch disks; 0: zones have none."""
    scratch_max: Bytes = Bytes(1024 * 1024 * _MIB)

    def __post_init__(self) -> None:
        at_least(1, self, "memory", "memory_min", "vcpus")
        at_least(0, self, "scratch", "scratch_max")
        if 0 < self.scratch < SCRATCH_LEAST:
            raise WrongKey("scratch", f"{self.scratch} is neither 0 nor at least {SCRATCH_LEAST}")
        at_most(1024, self, "vcpus_max")
        pairs = (("memory_min", "memory"), ("memory", "memory_max"), ("vcpus", "vcpus_max"))
        for less, more in (*pairs, ("scratch", "scratch_max")):
            if getattr(self, less) > getattr(self, more):
                raise WrongKey(less, f"{getattr(self, less)} is more than {more}, {getattr(self, more)}")


@dataclass(frozen=True, slots=True)
class NamedDevice:
    """A device of this host, by its PCI address ("0000:65:00.0") or the path of its node.

    ``profiles``: profiles of zones that may have the device; empty: all.
    """

    SHORT: ClassVar[str] = "place"

    place: str = ""
    profiles: tuple[str, ...] = ()
    readonly: bool = False

    def __post_init__(self) -> None:
        if not is_place(self.place):
            cause = f"{self.place!r:.80} is neither a PCI address such as 0000:65:00.0 nor a path in /dev"
            raise WrongKey("place", cause)
        if self.readonly and not self.place.startswith("/"):
            raise WrongKey("readonly", "a PCI function cannot be")


@dataclass(frozen=True, slots=True)
class ScratchConfig:
    """The files behind zones' scratch disks.

    ``reserve``: bytes that stay free on the host's disk.  ``overcommit``: promise more than the disk has.
    """

    dir: Path | None = None
    """None: ``scratch`` in the state directory."""
    reserve: Bytes = Bytes(1024 * _MIB)
    overcommit: bool = False

    def __post_init__(self) -> None:
        absolute(self, "dir")
        at_least(0, self, "reserve")


@dataclass(frozen=True, slots=True)
class HostConfig:
    """The operator's declarations about this host, for handlers with requirements."""

    labels: tuple[str, ...] = ()
    devices: Mapping[str, NamedDevice] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, named in (("labels", self.labels), ("devices", self.devices)):
            for name in named:
                if not _NAME.fullmatch(name):
                    raise WrongKey(key, f"{name!r:.80} is not 1 to 63 of [a-z0-9._-]")


@dataclass(frozen=True, slots=True)
class ZoneLimits:
    """Quotas against greedy callers and zones."""

    zones: int = 512
    reservations: int = 1024
    workloads_per_zone: int = channel.LIMIT_CONTAINERS
    disks_per_zone: int = 80
    execs_per_zone: int = 48
    connections_per_zone: int = channel.LIMIT_CONNECTIONS
    disk_read_rate: Bytes = Bytes(0)
    """Bytes per second of each disk of a zone; 0: no limit, as for the other three."""
    disk_write_rate: Bytes = Bytes(0)
    disk_read_operations: int = 0
    disk_write_operations: int = 0

    def __post_init__(self) -> None:
        at_least(1, self, "zones", "reservations", "workloads_per_zone", "disks_per_zone")
        at_least(0, self, "execs_per_zone", "connections_per_zone")
        at_least(0, self, *_RATES)
        at_most(MOST_DISK_RATE, self, *_RATES)
        # Names from xvda to xvdyz; names from xvdza on belong to the toolstack.
        at_most(676, self, "disks_per_zone")
        # Limits of the agent.
        at_most(channel.LIMIT_CONTAINERS, self, "workloads_per_zone")
        at_most(channel.LIMIT_EXECS, self, "execs_per_zone")
        at_most(channel.LIMIT_CONNECTIONS, self, "connections_per_zone")

    @property
    def disk_rates(self) -> DiskRates:
        """The largest rates of a zone."""
        return DiskRates(
            self.disk_read_rate, self.disk_write_rate, self.disk_read_operations, self.disk_write_operations
        )


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Deadlines, in seconds."""

    boot: Seconds = Seconds(60.0)
    call: Seconds = Seconds(30.0)
    stats: Seconds = Seconds(2.0)
    drain: Seconds = Seconds(10.0)
    stop: Seconds = Seconds(20.0)
    resize: Seconds = Seconds(30.0)
    silence: Seconds = Seconds(0.0)
    """Seconds that a zone may run with an unreachable agent; 0: no limit."""
    clock: Seconds = Seconds(30.0)
    """Seconds between comparisons of a zone's clock with the host's."""
    reconcile: Seconds = Seconds(15.0)

    def __post_init__(self) -> None:
        longer_than_nothing(self, "boot", "call", "stats", "stop", "resize", "clock", "reconcile")
        at_least(0, self, "silence")


@dataclass(frozen=True, slots=True)
class ProtectdFaults:
    """Faults that tests inject; see ``daemonkit.checkpoints``."""

    kill_at: str = ""
    toolstack: FaultPlan = FaultPlan()


@dataclass(frozen=True, slots=True)
class ProtectdConfig:
    """The whole of protectd.toml."""

    run_dir: Path = Path("/run/protect")
    state_dir: Path = Path("/var/lib/protect")
    guest_dir: Path = Path("/usr/lib/xenpod/guest")
    socket: Path | None = None
    toolstack: ToolstackKind = ToolstackKind.LIBXL
    log_level: str = "info"
    memory: Memory = Memory()
    scratch: ScratchConfig = ScratchConfig()
    host: HostConfig = HostConfig()
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    limits: ZoneLimits = ZoneLimits()
    timeouts: Timeouts = Timeouts()
    metrics: MetricsConfig = MetricsConfig()
    traces: TracesConfig = TracesConfig()
    audit: AuditConfig = AuditConfig()
    libxl: LibxlSettings = LibxlSettings()
    fake: FakeSettings = FakeSettings()
    faults: ProtectdFaults = ProtectdFaults()

    def __post_init__(self) -> None:
        absolute(self, "run_dir", "state_dir", "guest_dir", "socket")
        log_level(self)
        socket_path("socket" if self.socket else "run_dir", self.socket_path)
        for name in self.profiles:
            if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,63}", name):
                raise WrongKey("profiles", f"{name!r:.80} is not 1 to 64 of [a-z0-9-]")
        for name, device in self.host.devices.items():
            for profile in device.profiles:
                if profile not in self.profile_names():
                    raise WrongKey(f"host.devices.{name}.profiles", f"there is no profile {profile!r:.80}")

    def check_host(self) -> None:
        """Check values that depend on this host.  WrongKey: a value cannot work on this host."""
        existing_directory("guest_dir", self.guest_dir)
        if self.toolstack is ToolstackKind.LIBXL:
            existing_file("libxl.kernel", self.libxl.kernel)
            existing_file("libxl.initramfs", self.libxl.initramfs)
        elif self.fake.zone_memory <= 0:
            raise WrongKey("fake.reserve", f"{self.fake.reserve} is all the memory that this machine has")

    @property
    def socket_path(self) -> Path:
        return self.socket or self.run_dir / "protect.sock"

    @property
    def scratch_dir(self) -> Path:
        return self.scratch.dir or self.state_dir / "scratch"

    def profile_names(self) -> list[str]:
        return sorted({DEFAULT_PROFILE, *self.profiles})

    def profile(self, name: str) -> Profile:
        """The profile with this name, ``""`` for the default profile.  Invalid: not configured."""
        name = name or DEFAULT_PROFILE
        if name == DEFAULT_PROFILE and name not in self.profiles:
            return Profile()
        try:
            return self.profiles[name]
        except KeyError:
            known = ", ".join(self.profile_names())
            raise Invalid("find profile", name, "not configured", f"there are: {known}") from None
