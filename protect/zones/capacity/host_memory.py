"""Keeps the ledger in step with the hypervisor's report of the host's memory, which others use, too."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from daemonkit.faults import Fault
from protect.model.capacity.host_resources import HostMemory, Mode
from protect.model.toolstack import Toolstack
from protect.model.zone import ZoneSpec
from protect.state.ledger import Ledger, MemorySample
from protect.state.registry import Registry

log = logging.getLogger(__name__)

_MIB = 1 << 20
PERIOD_SECONDS = 5.0
"""Seconds between samples.  Other domains and dom0's balloon take memory without a report."""


def zone_promise(toolstack: Toolstack, spec: ZoneSpec) -> int:
    """Bytes to promise to a zone: memory, and the hypervisor's overhead for the domain."""
    return spec.memory_bytes + toolstack.overhead_bytes(spec.built_memory, spec.most_vcpus, spec.mode)


def reservation_promise(toolstack: Toolstack, memory_bytes: int, vcpus: int) -> int:
    """Bytes to promise by a reservation, enough for every mode; 0 for a reservation without memory."""
    if not memory_bytes:
        return 0
    overhead = max(toolstack.overhead_bytes(memory_bytes, max(vcpus, 1), mode) for mode in Mode)
    return memory_bytes + overhead


def memory_within(toolstack: Toolstack, total_bytes: int, vcpus: int) -> int:
    """Memory, in whole MiB, of a reservation that promises at most ``total_bytes``; 0: too little."""
    # A smaller domain has no larger overhead.
    overhead = reservation_promise(toolstack, total_bytes, vcpus) - total_bytes
    return max(total_bytes - overhead, 0) // _MIB * _MIB


@dataclass(frozen=True, slots=True)
class MemorySampler:
    """Keeps the ledger in step with the hypervisor's report of the host's memory."""

    registry: Registry
    ledger: Ledger
    toolstack: Toolstack

    async def refresh(self) -> HostMemory:
        """Give the ledger a new sample of the host's memory; returns the sample."""
        memory = await self.toolstack.memory()
        zone_of = {runtime.zone.uuid: zone_id for zone_id, runtime in self.registry.zones.items()}
        held = {zone_of[uuid]: size for uuid, size in memory.domains.items() if uuid in zone_of}
        self.ledger.sample(
            MemorySample(
                free=memory.free,
                held=held,
                foreign=sum(memory.domains.values()) - sum(held.values()),
                dom0=memory.dom0,
                sharing=memory.sharing,
            )
        )
        return memory

    async def follow(self) -> None:
        """Refresh the ledger while the daemon runs."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            try:
                await self.refresh()
            except Fault as fault:
                log.warning("the host's memory is not known: %s", fault)
