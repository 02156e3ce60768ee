"""ResizeZone: a running zone's share of CPUs changes; its memory and its number of vCPUs are fixed."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault, Refused
from daemonkit.logs import fields
from daemonkit.tasks import complete
from protect.model.shares import CpuShares
from protect.model.zone import ZoneSpec
from protect.state.manager import ZoneManager
from protect.state.runtime import ZoneRuntime

log = logging.getLogger(__name__)

_MIB = 1 << 20
_LATER = "a running zone's size is fixed; a new pod gets the new one"


@dataclass(frozen=True, slots=True)
class ZoneSize:
    """What a zone is to become; 0 memory or vCPUs, None: as it is."""

    memory_bytes: int = 0
    vcpus: int = 0
    weight: int | None = None
    cap: int | None = None

    def shares(self, now: CpuShares) -> CpuShares:
        """``now``, changed."""
        weight = now.weight if self.weight is None else self.weight
        return CpuShares(weight, now.cap if self.cap is None else self.cap)


async def resize(manager: ZoneManager, zone_id: str, wanted: ZoneSize) -> list[str]:
    """Do all of it, or nothing: then one sentence for each wish that cannot be granted.

    A zone that is larger than asked for keeps its size: everything asked for fits in it.
    """
    runtime = manager.zone("resize zone", zone_id)
    async with runtime.lock:
        if not runtime.running:
            raise Refused("resize zone", zone_id, runtime.end.cause or f"it is {runtime.zone.state.value}")
        if not_done := _impossible(runtime.zone.spec, wanted):
            return not_done
        shares = wanted.shares(runtime.zone.spec.shares)
        if shares != runtime.zone.spec.shares:
            await complete(_share(manager, runtime, shares))
    return []


def _impossible(spec: ZoneSpec, wanted: ZoneSize) -> list[str]:
    not_done = []
    if wanted.memory_bytes > spec.memory_bytes:
        asked, have = -(-wanted.memory_bytes // _MIB), spec.memory_bytes // _MIB
        not_done.append(f"memory: {asked} MiB wanted, the zone has {have} MiB ({_LATER})")
    if wanted.vcpus > spec.vcpus:
        not_done.append(f"vCPUs: {wanted.vcpus} wanted, the zone has {spec.vcpus} ({_LATER})")
    return not_done


async def _share(manager: ZoneManager, runtime: ZoneRuntime, shares: CpuShares) -> None:
    """Record first: what a killed daemon has not done, ``restore_shares`` does at the next start."""
    before = runtime.zone
    manager.put_zone(runtime, replace(before, spec=replace(before.spec, shares=shares)))
    checkpoint("zone-resize.recorded")
    try:
        await manager.toolstack.set_shares(before.domain_id, shares)
    except Fault:
        manager.note_zone(runtime, replace(runtime.zone, spec=before.spec))
        raise
    checkpoint("zone-resize.done")
    log.info("zone has other shares", extra=fields(zone=runtime.id, weight=shares.weight, cap=shares.cap))


async def restore_shares(manager: ZoneManager, runtime: ZoneRuntime) -> None:
    """Have the hypervisor hold what is recorded, whatever it holds now; a failure is logged."""
    try:
        await manager.toolstack.set_shares(runtime.zone.domain_id, runtime.zone.spec.shares)
    except Fault as fault:
        log.error("CPU shares are not set: %s", fault, extra=fields(zone=runtime.id))
