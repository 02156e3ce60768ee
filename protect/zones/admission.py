"""Admission of a zone: size, bounds of profile and handler, the pod's reservations, room on the host."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Exhausted, Exists, Invalid, Refused
from daemonkit.observe.steps import step
from daemonkit.quantity import in_mib
from protect.config import (
    DEFAULT_PROFILE,
    SCRATCH_LEAST,
    Memory,
    NamedDevice,
    Profile,
    ProtectdConfig,
    ZoneLimits,
)
from protect.model import checks
from protect.model.capacity.host_resources import HostMemory
from protect.model.capacity.modes import WantedMode, choose, refuse_impossible_label, refuse_impossible_mode
from protect.model.capacity.reservation import Reservation
from protect.model.domain.shares import CpuShares, DiskRates
from protect.model.ports import ScratchDisks
from protect.model.toolstack import Capabilities, DomainKernel, Mode, Toolstack
from protect.model.zone import MemoryPolicy, Zone, ZoneIdMapping, ZoneSpec, ZoneState
from protect.state.daemon_lifetime import AdmissionGate
from protect.state.ledger import Ledger
from protect.state.registry import Registry
from protect.state.runtime import ZoneRuntime
from protect.state.store import Intent
from protect.state.timestamps import now_ns
from protect.workloads.devices import find
from protect.zones import disk_rates, kernel
from protect.zones.capacity import host_memory
from protect.zones.capacity.host_memory import MemorySampler

INTENT = Intent("zone.create")

_CREATE = "create zone"
_MIB = 1 << 20
_LIMITS = "the profile sets the limits"


@dataclass(frozen=True, slots=True)
class Resources:
    """Memory in bytes and number of vCPUs; 0: not given."""

    memory: int = 0
    vcpus: int = 0


@dataclass(frozen=True, slots=True)
class ZoneRequest:
    """A zone that a caller requests: each field checked by itself, no default applied yet."""

    id: str
    name: str = ""
    hostname: str = ""
    profile: str = ""
    pod_uid: str = ""
    resources: Resources = Resources()
    most: Resources = Resources()
    """Maximum while the zone runs."""
    headroom: Resources = Resources()
    """Maximum relative to the size at launch; ``most`` overrides it."""
    bound: Resources = Resources()
    """Limits of the pod's runtime handler."""
    memory_min_bytes: int = 0
    memory_policy: MemoryPolicy = MemoryPolicy.STATIC
    shares: CpuShares = CpuShares()
    disk_rates: DiskRates = DiskRates()
    scratch_bytes: int | None = None
    """None: the profile's size."""
    mode: WantedMode | None = None
    """None: the profile's mode."""
    kernel: DomainKernel | None = None
    seclabel: str = ""
    cpupool: str = ""
    interfaces: int = 0
    netns: str = ""
    sysctls: Mapping[str, str] = field(default_factory=dict)
    id_mapping: ZoneIdMapping | None = None
    device_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reserved:
    """The sum of a pod's reservations; no memory if the pod has none, or only reservations of devices."""

    resources: Resources = Resources()
    reservations: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()

    def check_bound(self, zone_id: str, bound: Resources) -> None:
        """Refused: the pod has more reserved than its runtime handler allows."""
        has = self.resources
        if 0 < bound.memory < has.memory:
            reserved, limit = f"{in_mib(has.memory)} of memory", in_mib(bound.memory)
        elif 0 < bound.vcpus < has.vcpus:
            reserved, limit = f"{has.vcpus} vCPUs", f"{bound.vcpus}"
        else:
            return
        names = ", ".join(self.reservations)
        cause = f"reserved for its pod are {reserved} ({names}), its runtime handler allows at most {limit}"
        hint = "claim less, or raise memory_max or vcpus_max of the handler in cri.toml"
        raise Refused(_CREATE, zone_id, cause, hint)

    def fit(self, zone_id: str, wanted: Resources) -> Resources:
        """Resources of the zone.  Refused: the caller wants more than is reserved."""
        has = self.resources
        if not has.memory:
            return wanted
        if wanted.memory > has.memory:
            raise self._too_little(zone_id, f"{in_mib(wanted.memory)} of memory")
        if 0 < has.vcpus < wanted.vcpus:
            raise self._too_little(zone_id, f"{wanted.vcpus} vCPUs")
        return Resources(has.memory, has.vcpus or wanted.vcpus)

    def _too_little(self, zone_id: str, wanted: str) -> Refused:
        has = self.resources
        have = f"{in_mib(has.memory)} and {has.vcpus} vCPUs" if has.vcpus else in_mib(has.memory)
        cause = f"it asks for {wanted}, reserved for its pod are {have} ({', '.join(self.reservations)})"
        return Refused(_CREATE, zone_id, cause, "claim as much as the pod's limits and its overhead")


def zone_spec(
    config: ProtectdConfig,
    capabilities: Capabilities,
    reservations: Iterable[Reservation],
    wanted: ZoneRequest,
    *,
    hotplug: bool = False,
) -> ZoneSpec:
    """The spec of the zone to launch.  ``hotplug``: the zone's kernel takes hot-plugged memory.

    Invalid: beyond the limits of the profile.  Refused: beyond the pod's reservations or the bounds of its
    handler, or impossible on this host.
    """
    profile = config.profile(wanted.profile)
    reserved = _reserved(reservations, wanted.pod_uid)
    reserved.check_bound(wanted.id, wanted.bound)
    size = _size(profile, reserved, wanted)
    _refuse_unreserved(config.memory, reserved, wanted)
    mode = _mode(profile, capabilities, wanted)
    refuse_impossible_label(_CREATE, wanted.id, wanted.seclabel, capabilities)
    most = _most(profile, size, wanted)
    limits, possible = config.limits.disk_rates, capabilities.disk_rates
    return ZoneSpec(
        id=wanted.id,
        name=wanted.name,
        hostname=wanted.hostname,
        profile=wanted.profile or DEFAULT_PROFILE,
        memory_bytes=size.memory,
        vcpus=size.vcpus,
        mode=mode,
        interfaces=wanted.interfaces,
        netns=wanted.netns,
        sysctls=wanted.sysctls,
        id_mapping=wanted.id_mapping,
        kernel=wanted.kernel,
        shares=wanted.shares,
        scratch_bytes=_scratch(profile, wanted),
        reservations=reserved.reservations,
        seclabel=wanted.seclabel,
        device_names=_devices(reserved, wanted),
        disk_rates=disk_rates.allowed(_CREATE, wanted.id, wanted.disk_rates, limits, possible=possible),
        memory_max_bytes=size.memory if hotplug else most.memory,
        vcpus_max=most.vcpus,
        hotplug_max_bytes=_hotplug_max(profile, reserved, wanted, most) if hotplug else 0,
        memory_limit_bytes=most.memory if hotplug and most.memory > size.memory else 0,
        memory_policy=wanted.memory_policy,
        memory_min_bytes=min(wanted.memory_min_bytes or size.memory, size.memory),
        cpupool=wanted.cpupool,
    )


def _reserved(reservations: Iterable[Reservation], pod_uid: str) -> Reserved:
    found = [one for one in reservations if pod_uid and pod_uid in one.pod_uids]
    return Reserved(
        Resources(sum(one.memory_bytes for one in found), sum(one.vcpus for one in found)),
        tuple(one.id for one in found),
        tuple(dict.fromkeys(name for one in found for name in one.devices)),
    )


def _size(profile: Profile, reserved: Reserved, wanted: ZoneRequest) -> Resources:
    fitting = reserved.fit(wanted.id, wanted.resources)
    memory, vcpus = fitting.memory or profile.memory, fitting.vcpus or profile.vcpus
    if not profile.memory_min <= memory <= profile.memory_max:
        low, high = profile.memory_min / _MIB, profile.memory_max / _MIB
        cause = f"{memory / _MIB:.0f} MiB of memory are not between {low:.0f} and {high:.0f} MiB"
        raise Invalid(_CREATE, wanted.id, cause, _LIMITS)
    if vcpus > profile.vcpus_max:
        raise Invalid(_CREATE, wanted.id, f"{vcpus} vCPUs are more than {profile.vcpus_max}", _LIMITS)
    return Resources(memory, vcpus)


def _refuse_unreserved(memory: Memory, reserved: Reserved, wanted: ZoneRequest) -> None:
    if memory.reservations_only and not reserved.resources.memory:
        cause = "nothing is reserved for its pod, and memory.reservations_only of protectd.toml is set"
        raise Refused(_CREATE, wanted.id, cause, "give the pod a resource claim")


def _mode(profile: Profile, capabilities: Capabilities, wanted: ZoneRequest) -> Mode:
    mode = choose(wanted.mode or profile.mode, capabilities, own_kernel=wanted.kernel is None)
    refuse_impossible_mode(_CREATE, wanted.id, mode, capabilities)
    return mode


def _most(profile: Profile, size: Resources, wanted: ZoneRequest) -> Resources:
    """The maxima, within the bounds of handler and profile.  Invalid: the caller names a larger maximum."""
    most, headroom, bound = wanted.most, wanted.headroom, wanted.bound
    if most.memory > profile.memory_max or most.vcpus > profile.vcpus_max:
        cause = f"a maximum of {most.memory / _MIB:.0f} MiB and {most.vcpus} vCPUs"
        limits = f"{profile.memory_max / _MIB:.0f} MiB and {profile.vcpus_max}"
        raise Invalid(_CREATE, wanted.id, f"{cause} is beyond {limits}", _LIMITS)
    memory = most.memory or size.memory + min(headroom.memory, profile.memory_max)
    vcpus = most.vcpus or size.vcpus + min(headroom.vcpus, profile.vcpus_max)
    return Resources(
        max(size.memory, min(memory, profile.memory_max, bound.memory or profile.memory_max)),
        max(size.vcpus, min(vcpus, profile.vcpus_max, bound.vcpus or profile.vcpus_max)),
    )


def _hotplug_max(profile: Profile, reserved: Reserved, wanted: ZoneRequest, most: Resources) -> int:
    """The maximum with hot-plug, which costs nothing: the bound of profile and handler.

    A zone of reserved memory, and a zone whose caller names a maximum, stays within ``most``.
    """
    if wanted.most.memory or reserved.resources.memory:
        return most.memory
    return max(most.memory, min(profile.memory_max, wanted.bound.memory or profile.memory_max))


def _scratch(profile: Profile, wanted: ZoneRequest) -> int:
    size = profile.scratch if wanted.scratch_bytes is None else wanted.scratch_bytes
    if size > profile.scratch_max or 0 < size < SCRATCH_LEAST:
        low, high = SCRATCH_LEAST / _MIB, profile.scratch_max / _MIB
        cause = f"a scratch disk of {size / _MIB:.0f} MiB is neither 0 nor {low:.0f} to {high:.0f} MiB"
        raise Invalid(_CREATE, wanted.id, cause, "scratch_max of the profile sets the limit")
    return -(-size // _MIB) * _MIB


def _devices(reserved: Reserved, wanted: ZoneRequest) -> tuple[str, ...]:
    names = (*wanted.device_names, *reserved.devices)
    checks.device_count(_CREATE, wanted.id, len(names))
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class ZoneAdmission:
    """Admits zones: checks devices, kernel and room on the host, then reserves and records."""

    registry: Registry
    ledger: Ledger
    toolstack: Toolstack
    sampler: MemorySampler
    scratch: ScratchDisks
    gate: AdmissionGate
    named_devices: Mapping[str, NamedDevice]
    limits: ZoneLimits

    async def admit(self, spec: ZoneSpec) -> ZoneRuntime:
        """Reserve the id, the memory and the record of a zone, all or nothing.

        Exists, Exhausted.  Missing, Denied: a device.  Refused: the kernel, or protectd accepts no zones.
        """
        find.check_devices(self.named_devices, spec)
        if spec.kernel:
            await asyncio.to_thread(kernel.check_kernel, spec.id, spec.kernel)
        with step("zone.admit", zone=spec.id):
            promise = host_memory.zone_promise(self.toolstack, spec)
            memory = await self.sampler.refresh()
            # Nothing is awaited from here on: two zones at once cannot both count on the same memory.
            self._check_capacity(spec.id, memory)
            return self._record(spec, promise)

    def _check_capacity(self, zone_id: str, memory: HostMemory) -> None:
        if zone_id in self.registry.zones:
            raise Exists(_CREATE, zone_id, "there is one already")
        if self.gate.closed:
            raise Refused(_CREATE, zone_id, self.gate.closed)
        count = len(self.registry.zones)
        if count >= self.limits.zones:
            raise Exhausted(_CREATE, zone_id, f"there are {count} zones, as many as limits.zones")
        self._check_domains(zone_id, memory)

    def _check_domains(self, zone_id: str, memory: HostMemory) -> None:
        """Exhausted: the hypervisor has no room for one more domain, however much memory is free.

        Domains that are being created count, and domains of others.
        """
        capacity = self.toolstack.capacity(self.limits.disks_per_zone)
        if not capacity.domains:
            return
        ours = {one.zone.uuid for one in self.registry.zones.values() if one.zone.state is not ZoneState.DEAD}
        if (count := len(ours | memory.domains.keys())) >= capacity.domains:
            cause = f"there are {count} domains, as many as the hypervisor has room for: {capacity.bound}"
            raise Exhausted(_CREATE, zone_id, cause, "protect host says which setting to raise")

    def _record(self, spec: ZoneSpec, promise: int) -> ZoneRuntime:
        self.scratch.admit(spec.id, spec.scratch_bytes)
        with ExitStack() as undo:
            undo.callback(self.scratch.remove, spec.id)
            self.ledger.admit(spec.id, promise, spec.reservations)
            undo.callback(self.ledger.release, spec.id)
            zone = Zone(spec, uuid.uuid4(), ZoneState.CREATING, now_ns(), host_boot=self.registry.host_boot)
            runtime = self.registry.add_zone(zone)
            undo.callback(self.registry.zones.pop, spec.id)
            self.registry.put_zone(runtime, runtime.zone, INTENT)
            undo.pop_all()
        checkpoint("zone-create.recorded")
        return runtime
