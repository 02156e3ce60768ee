"""Keeps the ledger in step with the host's memory as the hypervisor reports it, since others use it too."""

from __future__ import annotations

import asyncio
import logging

from daemonkit.faults import Fault
from protect.model.room.host import HostMemory, Mode
from protect.model.toolstack import Toolstack
from protect.model.zone import ZoneSpec
from protect.state.ledger import MemorySample
from protect.state.manager import ZoneManager

log = logging.getLogger(__name__)

_MIB = 1 << 20
PERIOD = 5.0
"""Seconds between two samples: nothing reports what other domains and dom0's balloon take."""


def zone_promise(toolstack: Toolstack, spec: ZoneSpec) -> int:
    """Bytes to promise to a zone: its memory, and what the hypervisor takes for its domain."""
    return spec.memory_bytes + toolstack.overhead_bytes(spec.most_memory, spec.most_vcpus, spec.mode)


def reservation_promise(toolstack: Toolstack, memory_bytes: int, vcpus: int) -> int:
    """Bytes to promise by a reservation, whatever the mode of its zone will be; 0 for one without memory."""
    if not memory_bytes:
        return 0
    overhead = max(toolstack.overhead_bytes(memory_bytes, max(vcpus, 1), mode) for mode in Mode)
    return memory_bytes + overhead


def memory_within(toolstack: Toolstack, total_bytes: int, vcpus: int) -> int:
    """Memory of a reservation that promises at most ``total_bytes``, in whole MiB; 0: too little."""
    # A smaller domain takes no more for itself.
    overhead = reservation_promise(toolstack, total_bytes, vcpus) - total_bytes
    return max(total_bytes - overhead, 0) // _MIB * _MIB


async def refresh(manager: ZoneManager) -> HostMemory:
    """Give the ledger a new sample of the host's memory; returns the sample."""
    memory = await manager.toolstack.memory()
    zone_of = {runtime.zone.uuid: zone_id for zone_id, runtime in manager.zones.items()}
    held = {zone_of[uuid]: size for uuid, size in memory.domains.items() if uuid in zone_of}
    manager.ledger.sample(
        MemorySample(
            free=memory.free,
            held=held,
            foreign=sum(memory.domains.values()) - sum(held.values()),
            dom0=memory.dom0,
            sharing=memory.sharing,
        )
    )
    return memory


async def follow(manager: ZoneManager) -> None:
    """Refresh the ledger for as long as the daemon runs."""
    while True:
        await asyncio.sleep(PERIOD)
        try:
            await refresh(manager)
        except Fault as fault:
            log.warning("the host's memory is not known: %s", fault)
