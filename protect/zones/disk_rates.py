"""Disk rates of a running zone: change, and restore after a restart."""

from __future__ import annotations

import logging
from dataclasses import replace

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault, Refused
from daemonkit.logs import fields
from daemonkit.tasks import complete
from protect.model.capacity.modes import refuse_impossible_rates
from protect.model.domain.shares import DiskRates
from protect.model.toolstack import Toolstack
from protect.state.registry import Registry
from protect.state.runtime import ZoneRuntime

log = logging.getLogger(__name__)


def allowed(
    operation: str, zone_id: str, wanted: DiskRates, limits: DiskRates, *, possible: bool
) -> DiskRates:
    """The wanted rates, within the limits of the configuration; none if the host cannot hold any.

    Refused: rates are wanted, and the host cannot hold them.
    """
    refuse_impossible_rates(operation, zone_id, wanted, possible=possible)
    # protect host has a notice if only the configuration wants rates.
    return wanted.within(limits) if possible else DiskRates()


async def change(registry: Registry, toolstack: Toolstack, zone_id: str, rates: DiskRates) -> None:
    """Limit present and later disks of the zone.  Refused: the zone does not run."""
    runtime = registry.zone("set disk rates of zone", zone_id)
    async with runtime.lock:
        if not runtime.running:
            cause = runtime.end.cause or f"it is {runtime.zone.state.value}"
            raise Refused("set disk rates of zone", zone_id, cause)
        if rates != runtime.zone.spec.disk_rates:
            await complete(_change(registry, toolstack, runtime, rates))


async def _change(registry: Registry, toolstack: Toolstack, runtime: ZoneRuntime, rates: DiskRates) -> None:
    """Record first: after a kill of the daemon, ``restore`` finishes the change at the next start."""
    before = runtime.zone
    registry.put_zone(runtime, replace(before, spec=replace(before.spec, disk_rates=rates)))
    checkpoint("zone-rates.recorded")
    try:
        await toolstack.set_disk_rates(before.domain_id, rates)
    except Fault:
        registry.note_zone(runtime, replace(runtime.zone, spec=before.spec))
        raise
    checkpoint("zone-rates.done")
    log.info("zone has other rates of disks", extra=fields(zone=runtime.id))


async def restore(toolstack: Toolstack, runtime: ZoneRuntime) -> None:
    """Set the recorded rates on the host; a failure is logged.

    A host without disk rates has no recorded rates, and needs no call.
    """
    rates = runtime.zone.spec.disk_rates
    if rates or toolstack.capabilities().disk_rates:
        try:
            await toolstack.set_disk_rates(runtime.zone.domain_id, rates)
        except Fault as fault:
            log.error("rates of disks are not set: %s", fault, extra=fields(zone=runtime.id))
