"""The configuration file of protectd; every key is explained in packaging/protectd.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from daemonkit.config import Bytes, Seconds, at_least, longer_than_nothing
from daemonkit.faults import Invalid
from protect.model.toolstack import Mode
from protect.toolstack.fake.faultplan import FaultPlan
from protect.toolstack.fake.settings import FakeSettings
from protect.toolstack.libxl.settings import LibxlSettings

_MIB = 1 << 20
DEFAULT_PROFILE = "default"


class ToolstackKind(Enum):
    """Which hypervisor adapter to build."""

    FAKE = "fake"
    LIBXL = "libxl"


@dataclass(frozen=True, slots=True)
class Memory:
    """What zones may have together: ``total``, or when that is 0 the host's memory less ``reserve``."""

    total: Bytes = Bytes(0)
    reserve: Bytes = Bytes(512 * _MIB)


@dataclass(frozen=True, slots=True)
class Profile:
    """Virtualisation mode, and defaults and limits of a zone's size."""

    mode: Mode = Mode.PV
    memory: Bytes = Bytes(256 * _MIB)
    memory_min: Bytes = Bytes(64 * _MIB)
    memory_max: Bytes = Bytes(64 * 1024 * _MIB)
    vcpus: int = 1
    vcpus_max: int = 64

    def __post_init__(self) -> None:
        if not 0 < self.memory_min <= self.memory <= self.memory_max:
            raise ValueError("want 0 < memory_min <= memory <= memory_max")
        if not 1 <= self.vcpus <= self.vcpus_max <= 1024:
            raise ValueError("want 1 <= vcpus <= vcpus_max <= 1024")


@dataclass(frozen=True, slots=True)
class ZoneLimits:
    """Quotas against callers and zones that want too much."""

    zones: int = 512
    workloads_per_zone: int = 128
    disks_per_zone: int = 80
    execs_per_zone: int = 48
    connections_per_zone: int = 128

    def __post_init__(self) -> None:
        # The names from xvda to xvdyz: those from xvdza on are the toolstack's own.
        if not 1 <= self.disks_per_zone <= 676:
            raise ValueError("want 1 <= disks_per_zone <= 676")
        at_least(0, self, "zones", "workloads_per_zone", "execs_per_zone", "connections_per_zone")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Deadlines, in seconds."""

    boot: Seconds = Seconds(60.0)
    call: Seconds = Seconds(30.0)
    stats: Seconds = Seconds(2.0)
    drain: Seconds = Seconds(10.0)
    stop: Seconds = Seconds(20.0)

    def __post_init__(self) -> None:
        longer_than_nothing(self, "boot", "call", "stats", "stop")


@dataclass(frozen=True, slots=True)
class ProtectdFaults:
    """Faults that tests inject; see daemonkit.checkpoints."""

    kill_at: str = ""
    toolstack: FaultPlan = FaultPlan()


@dataclass(frozen=True, slots=True)
class ProtectdConfig:
    """protectd.toml."""

    run_dir: Path = Path("/run/protect")
    state_dir: Path = Path("/var/lib/protect")
    guest_dir: Path = Path("/usr/lib/xenpod/guest")
    socket: Path | None = None
    toolstack: ToolstackKind = ToolstackKind.LIBXL
    log_level: str = "info"
    memory: Memory = Memory()
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    limits: ZoneLimits = ZoneLimits()
    timeouts: Timeouts = Timeouts()
    libxl: LibxlSettings = LibxlSettings()
    fake: FakeSettings = FakeSettings()
    faults: ProtectdFaults = ProtectdFaults()

    def __post_init__(self) -> None:
        for key in ("run_dir", "state_dir", "guest_dir"):
            if not getattr(self, key).is_absolute():
                raise ValueError(f"{key} is not an absolute path")
        for name in self.profiles:
            if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,63}", name):
                raise ValueError(f"profile name {name!r} is not 1 to 64 of [a-z0-9-]")

    @property
    def socket_path(self) -> Path:
        return self.socket or self.run_dir / "protect.sock"

    def profile_names(self) -> list[str]:
        return sorted({DEFAULT_PROFILE, *self.profiles})

    def profile(self, name: str) -> Profile:
        """By name, ``""`` for the default one; Invalid for one that is not configured."""
        name = name or DEFAULT_PROFILE
        if name == DEFAULT_PROFILE and name not in self.profiles:
            return Profile()
        try:
            return self.profiles[name]
        except KeyError:
            known = ", ".join(self.profile_names())
            raise Invalid("find profile", name, "not configured", f"there are: {known}") from None
