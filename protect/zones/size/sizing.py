"""The steps of a resize.  Hypervisor and zone confirm each step before the next.

Steps that the zone may refuse come first, the host's own steps later, the record last.  After a failed step,
or a death of the daemon, the recorded size is restored.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault, Refused
from daemonkit.logs import fields
from protect.config import Timeouts
from protect.model.errors import DomainGone
from protect.model.process import GuestSize
from protect.model.toolstack import DomainInfo, Toolstack
from protect.model.zone import Zone, ZoneSpec
from protect.state.ledger import Ledger
from protect.state.registry import Registry
from protect.state.runtime import ZoneRuntime
from protect.state.store import Intent
from protect.zones.capacity import host_memory
from protect.zones.capacity.host_memory import MemorySampler

log = logging.getLogger(__name__)

OPERATION = "zone.resize"
_MEMORY = "memory_bytes"
_MIB = 1 << 20
_SPARE_BYTES, _SPARE_PART = 4 * _MIB, 32
"""Memory to stay available in a shrinking zone: bytes, and 1/_SPARE_PART of the used memory."""
_SECTION_BYTES = 128 * _MIB
"""Linux hot-plugs memory in sections of this size (SECTION_SIZE_BITS of x86)."""
_STALLED = 6
"""The wait ends after 1/_STALLED of the timeout without any change."""
_FIRST_LOOK_SECONDS, _LOOK_SECONDS = 0.005, 0.25
"""Seconds between looks: neither Xen nor a guest reports the end of a balloon's work."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """Changes the sizes of running zones."""

    registry: Registry
    ledger: Ledger
    toolstack: Toolstack
    sampler: MemorySampler
    timeouts: Timeouts

    async def change(self, runtime: ZoneRuntime, after: ZoneSpec) -> None:
        """Give the zone the size and shares of ``after``, or change nothing.

        Exhausted: the host lacks memory.  Refused: the zone cannot give enough memory back, or does not
        start or stop its CPUs.  Must not be cancelled.
        """
        before = runtime.zone
        await self.sampler.refresh()
        larger = max(before.spec, after, key=lambda spec: spec.memory_bytes)
        self.ledger.change(runtime.id, host_memory.zone_promise(self.toolstack, larger))
        try:
            self.registry.put_zone(
                runtime, before, Intent(OPERATION, data={_MEMORY: str(after.memory_bytes)})
            )
            checkpoint("zone-resize.recorded")
            await self._apply(runtime, after)
            self.registry.put_zone(runtime, replace(runtime.zone, spec=after))
        except Fault as fault:
            log.info("resize is undone: %s", fault, extra=fields(zone=runtime.id))
            if not runtime.end:
                await self.restore(runtime)
            raise
        checkpoint("zone-resize.done")
        self.ledger.change(runtime.id, host_memory.zone_promise(self.toolstack, after))
        memory, vcpus, shares = after.memory_bytes, after.vcpus, after.shares
        told = fields(zone=runtime.id, memory=memory, vcpus=vcpus, weight=shares.weight, cap=shares.cap)
        log.info("zone is resized", extra=told)

    async def restore(self, runtime: ZoneRuntime) -> None:
        """Set the recorded size and shares in the hypervisor.

        A failure is logged, and the next start tries again.
        """
        zone, toolstack = runtime.zone, self.toolstack
        try:
            await toolstack.set_memory(zone.domain_id, zone.spec.memory_bytes)
            await toolstack.set_vcpus(zone.domain_id, zone.spec.vcpus)
            await toolstack.set_shares(zone.domain_id, zone.spec.shares)
        except Fault as fault:
            log.error("the zone's size is not what is recorded: %s", fault, extra=fields(zone=runtime.id))
            return
        checkpoint("zone-restore.set")
        if zone.resizes and runtime.connected:
            await self.start_cpus(runtime)
        self.registry.note_zone(runtime, runtime.zone)
        self.ledger.change(runtime.id, host_memory.zone_promise(self.toolstack, zone.spec))

    async def start_cpus(self, runtime: ZoneRuntime) -> None:
        """Let the zone start all its CPUs; a failure is logged.

        The kernel may not have noticed new CPUs yet: the zone is asked until they run.
        """
        vcpus = runtime.zone.spec.vcpus

        def reached(_: DomainInfo, size: GuestSize) -> bool:
            return size.cpus >= vcpus

        try:
            last = await self._until(runtime, reached, vcpus)
        except Fault as fault:
            log.warning("the zone may lack a CPU: %s", fault, extra=fields(zone=runtime.id))
            return
        if last is not None:
            told = fields(zone=runtime.id, vcpus=vcpus, running=last[1].cpus)
            log.warning("the zone does not start its CPUs", extra=told)

    async def _apply(self, runtime: ZoneRuntime, after: ZoneSpec) -> None:
        spec = runtime.zone.spec
        if after.vcpus < spec.vcpus:
            await self._set_vcpus(runtime, after.vcpus)
            checkpoint("zone-resize.cpus-taken")
        if after.memory_bytes < spec.memory_bytes:
            await self._take_memory(runtime, after.memory_bytes)
            checkpoint("zone-resize.memory-taken")
        if after.memory_bytes > spec.memory_bytes:
            await self._give_memory(runtime, after.memory_bytes)
            checkpoint("zone-resize.memory-given")
        if after.vcpus > spec.vcpus:
            await self._set_vcpus(runtime, after.vcpus)
            checkpoint("zone-resize.cpus-given")
        if (after.shares, after.vcpus) != (spec.shares, spec.vcpus):
            await self.toolstack.set_shares(runtime.zone.domain_id, after.shares)
            checkpoint("zone-resize.shared")

    async def _set_vcpus(self, runtime: ZoneRuntime, vcpus: int) -> None:
        await self.toolstack.set_vcpus(runtime.zone.domain_id, vcpus)

        def reached(info: DomainInfo, size: GuestSize) -> bool:
            return info.vcpus_online == vcpus == size.cpus

        last = await self._until(runtime, reached, vcpus)
        if last is not None:
            cause = f"vCPUs: {vcpus} wanted, the zone says that it runs {last[1].cpus}"
            raise Refused("resize zone", runtime.id, f"{cause}, Xen counts {last[0].vcpus_online}")

    async def _give_memory(self, runtime: ZoneRuntime, memory: int) -> None:
        """In steps: the guest describes the pages of a step in memory that the guest already has."""
        begin = runtime.zone.spec.memory_bytes
        first = size = await runtime.agent.resize()
        target, deadline = begin, asyncio.get_running_loop().time() + self.timeouts.resize
        while True:
            target = min(memory, target + _hotplug_step(size))
            await self.toolstack.set_memory(runtime.zone.domain_id, target)

            def reached(info: DomainInfo, size: GuestSize, more: int = target - begin) -> bool:
                given = min(info.held_bytes - begin, size.memory_total_bytes - first.memory_total_bytes)
                return given >= more - _tolerance(more)

            last = await self._until(runtime, reached, deadline=deadline)
            if last is not None:
                cause = f"memory: {_mib(memory)} wanted, the zone took {_mib(max(0, last[0].held_bytes))}"
                raise Refused("resize zone", runtime.id, cause)
            if target == memory:
                return
            size = await runtime.agent.resize()

    async def _take_memory(self, runtime: ZoneRuntime, memory: int) -> None:
        begin = runtime.zone.spec.memory_bytes
        first = await runtime.agent.resize()
        least = least_memory(begin, first)
        if memory < least:
            raise Refused("resize zone", runtime.id, _keeps(memory, least))
        await self.toolstack.set_memory(runtime.zone.domain_id, memory)

        def reached(info: DomainInfo, size: GuestSize) -> bool:
            taken = first.memory_total_bytes - size.memory_total_bytes
            return info.held_bytes <= memory and taken >= begin - memory - _tolerance(begin - memory)

        last = await self._until(runtime, reached)
        if last is not None:
            raise Refused("resize zone", runtime.id, _keeps(memory, max(memory, last[0].held_bytes)))

    async def _until(
        self,
        runtime: ZoneRuntime,
        reached: Callable[[DomainInfo, GuestSize], bool],
        cpus: int = 0,
        deadline: float = math.inf,
    ) -> tuple[DomainInfo, GuestSize] | None:
        """Look until ``reached``: None; the last look if nothing changes any more, or after the timeout.

        ``deadline``: an earlier end of the wait, by the loop's clock.
        """
        loop = asyncio.get_running_loop()
        begun = changed = loop.time()
        pause, last, patience = _FIRST_LOOK_SECONDS, None, self.timeouts.resize
        while True:
            size = await runtime.agent.resize(cpus)
            info = await self.toolstack.find(runtime.zone.uuid)
            if info is None:
                raise DomainGone("resize zone", runtime.id, "its domain is gone")
            if reached(info, size):
                return None
            seen = (info.held_bytes, info.vcpus_online, size.cpus, size.memory_total_bytes)
            now = loop.time()
            if seen != last:
                last, changed = seen, now
            if now > min(deadline, begun + patience) or now - changed > patience / _STALLED:
                return info, size
            with suppress(TimeoutError):
                await asyncio.wait_for(runtime.end.wait(), pause)
            pause = min(2 * pause, _LOOK_SECONDS)


def with_memory(spec: ZoneSpec, memory_bytes: int) -> ZoneSpec:
    """The spec with another size and the same maximum."""
    return replace(spec, memory_bytes=memory_bytes, memory_max_bytes=spec.built_memory)


def intended(zone: Zone, intent: Intent | None) -> ZoneSpec:
    """The spec with the largest possible size, if a resize was interrupted by the daemon's death."""
    if intent is None or intent.operation != OPERATION:
        return zone.spec
    return with_memory(zone.spec, max(zone.spec.memory_bytes, int(intent.data[_MEMORY])))


async def restore_shares(toolstack: Toolstack, runtime: ZoneRuntime) -> None:
    """Set the recorded share of CPUs in the hypervisor; a failure is logged."""
    try:
        await toolstack.set_shares(runtime.zone.domain_id, runtime.zone.spec.shares)
    except Fault as fault:
        log.error("CPU shares are not set: %s", fault, extra=fields(zone=runtime.id))


def least_memory(memory: int, size: GuestSize) -> int:
    """The least possible memory of a zone with ``memory`` bytes, by its own report."""
    used = max(0, size.memory_total_bytes - size.memory_available_bytes)
    own = max(0, memory - size.memory_total_bytes)
    return own + used + max(_SPARE_BYTES, used // _SPARE_PART)


def _hotplug_step(size: GuestSize) -> int:
    """Bytes to add at once: their page structures (1/64) take at most a quarter of the available memory.

    Linux adds whole sections, and a zone without available memory still gets one.
    """
    return max(_SECTION_BYTES, size.memory_available_bytes * 16 // _MIB * _MIB)


def _keeps(wanted: int, least: int) -> str:
    return f"memory: {_mib(wanted)} wanted, the zone can go down to {_mib(least)}: the rest is in use"


def _tolerance(difference: int) -> int:
    """Difference between the counts of Linux and Xen, in bytes."""
    return _MIB + difference // 64


def _mib(size_bytes: int) -> str:
    return f"{-(-size_bytes // _MIB)} MiB"
