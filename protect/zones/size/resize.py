"""ResizeZone: changes a running zone's memory, vCPUs and share of CPUs, either all or nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

from daemonkit.faults import Refused
from daemonkit.tasks import complete
from protect.config import Profile, ProtectdConfig
from protect.model.domain.shares import CpuShares
from protect.model.zone import MemoryPolicy, Zone, ZoneSpec
from protect.state.registry import Registry
from protect.zones.size.sizing import Sizing

_MIB = 1 << 20
_OLD = "its agent is of an earlier release; a new pod can be resized"


@dataclass(frozen=True, slots=True)
class ZoneSize:
    """The wanted size of a zone; 0 memory or vCPUs, None: unchanged.

    With a dynamic policy ``memory_bytes`` becomes the policy's maximum.
    """

    memory_bytes: int = 0
    vcpus: int = 0
    weight: int | None = None
    cap: int | None = None
    memory_policy: MemoryPolicy | None = None

    def shares(self, now: CpuShares) -> CpuShares:
        """``now`` with the changes."""
        weight = now.weight if self.weight is None else self.weight
        return CpuShares(weight, now.cap if self.cap is None else self.cap)

    def applied(self, spec: ZoneSpec) -> ZoneSpec:
        """``spec`` with the changes."""
        policy = self.memory_policy or spec.memory_policy
        memory, limit = self.memory_bytes or spec.memory_bytes, spec.memory_limit_bytes
        if policy is MemoryPolicy.DYNAMIC:
            limit = self.memory_bytes or spec.policy_limit
            memory = min(spec.memory_bytes, limit)
        return replace(
            spec,
            memory_bytes=memory,
            memory_limit_bytes=limit,
            memory_max_bytes=spec.built_memory,
            vcpus=self.vcpus or spec.vcpus,
            vcpus_max=spec.most_vcpus,
            shares=self.shares(spec.shares),
            memory_policy=policy,
        )


async def resize(
    registry: Registry,
    sizing: Sizing,
    config: ProtectdConfig,
    zone_id: str,
    wanted: ZoneSize,
    *,
    only_more: bool = False,
) -> list[str]:
    """Change everything, or nothing; then returns a sentence for each impossible wish.

    ``only_more``: never take memory or vCPUs away, and leave dynamic memory within its maximum alone.

    Exhausted: the host lacks memory.  If the agent cannot resize, a zone larger than wanted keeps its size.
    """
    runtime = registry.zone("resize zone", zone_id)
    async with runtime.lock:
        if not runtime.running:
            raise Refused("resize zone", zone_id, runtime.end.cause or f"it is {runtime.zone.state.value}")
        zone = runtime.zone
        if only_more or not zone.resizes:
            wanted = _without_less(zone.spec, wanted)
        if not_done := _impossible(zone, wanted, config.profile(zone.spec.profile)):
            return not_done
        after = wanted.applied(zone.spec)
        if after != ZoneSize().applied(zone.spec):
            try:
                await complete(sizing.change(runtime, after))
            except Refused as fault:
                if runtime.end:
                    raise
                return [fault.cause]
    return []


def _without_less(spec: ZoneSpec, wanted: ZoneSize) -> ZoneSize:
    dynamic = spec.memory_policy is MemoryPolicy.DYNAMIC
    memory = (
        wanted.memory_bytes
        if wanted.memory_bytes > (spec.policy_limit if dynamic else spec.memory_bytes)
        else 0
    )
    return replace(wanted, memory_bytes=memory, vcpus=wanted.vcpus if wanted.vcpus > spec.vcpus else 0)


def _impossible(zone: Zone, wanted: ZoneSize, profile: Profile) -> list[str]:
    """Wishes above the zone's maximum at creation, or below the profile's minimum."""
    spec, not_done = zone.spec, []
    changes = wanted.memory_bytes != spec.memory_bytes
    most_memory, most_vcpus = spec.most_memory, spec.most_vcpus
    why = why_memory = "it was created for that; a new pod gets the new size"
    if spec.hotplug_max_bytes:
        why_memory = "memory_max of its handler or profile"
    if not zone.resizes:
        most_memory, most_vcpus, why, why_memory = spec.memory_bytes, spec.vcpus, _OLD, _OLD
    if wanted.memory_bytes > most_memory:
        asked, have = -(-wanted.memory_bytes // _MIB), most_memory // _MIB
        not_done.append(f"memory: {asked} MiB wanted, the zone can have {have} MiB ({why_memory})")
    if changes and 0 < wanted.memory_bytes < profile.memory_min:
        asked, least = wanted.memory_bytes // _MIB, -(-profile.memory_min // _MIB)
        not_done.append(f"memory: {asked} MiB wanted, memory_min of its profile is {least} MiB")
    if wanted.vcpus > most_vcpus:
        not_done.append(f"vCPUs: {wanted.vcpus} wanted, the zone can have {most_vcpus} ({why})")
    return not_done
