"""A toolstack whose domains are agents in memory: for tests of the logic above the port."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

from daemonkit.faults import Exists
from daemonkit.tasks import complete
from protect.model.capacity.host_resources import (
    DiskLimit,
    HostMemory,
    HostNotice,
    HostWants,
    Mode,
    ZoneCapacity,
)
from protect.model.domain.shares import CpuShares, DiskRates
from protect.model.errors import DomainGone, ToolstackError
from protect.model.toolstack import (
    Capabilities,
    DiskSpec,
    DomainDeath,
    DomainId,
    DomainInfo,
    DomainKernel,
    DomainSpec,
    DomainState,
    PhysicalInfo,
    ShareEnd,
    ShutdownReason,
)
from protect.toolstack.deaths import Listeners
from tests.support.agent.agent_sim import SimAgent
from tests.support.agent.memory_transport import MemoryTransport


@dataclass
class MemoryDomain:
    """A domain, its agent, and the attached disks."""

    id: DomainId
    spec: DomainSpec
    agent: SimAgent = field(default_factory=SimAgent)
    state: DomainState = DomainState.PAUSED
    reason: ShutdownReason | None = None
    disks: dict[str, DiskSpec] = field(default_factory=dict)
    functions: set[str] = field(default_factory=set)
    console: bytes = b""
    cpu_shares: list[CpuShares] = field(default_factory=list)
    """All changes of the CPU share; the last change holds."""
    disk_rates: list[DiskRates] = field(default_factory=list)
    abandoned: asyncio.Event = field(default_factory=asyncio.Event)
    shares: int = 0
    """Number of requests for the directory."""
    keeps_disks: bool = False
    """Held until nobody waits for the domain."""
    memory: int = 0
    kept: int = 0
    """Memory that the guest never gives back."""
    most: int = 2**63
    """Memory that the guest takes at most."""
    counted: int = 0
    online: int = 0
    """Memory and vCPUs by the hypervisor's count."""
    stubborn: frozenset[str] = frozenset()
    """Of ``cpus`` and ``memory`` the values that the hypervisor goes on to report, in spite of changes."""
    mute: frozenset[str] = frozenset()
    """Values that the guest goes on to report."""
    cpu_time_ns: int = 0

    def __post_init__(self) -> None:
        self.resize(memory_bytes=self.spec.memory_bytes, vcpus=self.spec.vcpus)
        self.agent.size.memory_available_bytes = self.memory // 2

    def resize(self, memory_bytes: int = 0, vcpus: int = 0) -> None:
        """Act as an obedient guest."""
        size = self.agent.size
        if memory_bytes:
            self.memory, memory_bytes = memory_bytes, min(memory_bytes, self.most)
            if "memory" not in self.stubborn:
                self.counted = memory_bytes
            if "memory" not in self.mute:
                before, size.memory_total_bytes = size.memory_total_bytes, max(memory_bytes, self.kept)
                change = size.memory_total_bytes - before
                size.memory_available_bytes = min(max(0, size.memory_available_bytes + change), 2**64 - 1)
        if vcpus and "cpus" not in self.stubborn:
            self.online = vcpus
        deaf = self.agent.deaf > 0 and vcpus > size.cpus
        if vcpus and "cpus" not in self.mute and not deaf:
            size.cpus = vcpus


class MemoryToolstack:
    """port.Toolstack; ``failing`` names the operations that fail, ``gates`` the operations that wait.

    A cancelled caller learns of the cancellation when the step has ended, as the port requires.
    """

    name = "memory"

    def __init__(self) -> None:
        self.domains: dict[DomainId, MemoryDomain] = {}
        self.destroyed: list[str] = []
        self.failing: set[str] = set()
        self.gates: dict[str, asyncio.Event] = {}
        self.entered: dict[str, asyncio.Event] = {}
        self.agent_ready = True
        """False: domains boot, but their agents never answer."""
        self.file_volumes = True
        """Whether the agents support CPU changes."""
        self.resizes = True
        """Whether agents can say how large their zones are."""
        self.targets: builtins.list[int] = []
        """Arguments of ``set_memory``."""
        self.hotplug = True
        """Whether kernels take hot-plugged memory."""
        self.can = Capabilities()
        self.share_listeners = Listeners[ShareEnd]()
        self.seclabels: set[str] = set()
        self.consoles = Path("/nonexistent")
        self.forgotten: list[str] = []
        self.host_memory = 1 << 34
        self.foreign_memory = 0
        """Part of the memory that foreign domains have."""
        self.overhead = 0
        self.host_notices: builtins.list[HostNotice] = []
        self.zone_capacity = ZoneCapacity()
        self.disks_most = DiskLimit(676, "")
        self._last_id = 0
        self._deaths: asyncio.Queue[DomainDeath] = asyncio.Queue()

    async def start(self) -> None: ...

    async def close(self) -> None:
        for domain in self.domains.values():
            await domain.agent.stop()

    async def physical_info(self) -> PhysicalInfo:
        return PhysicalInfo(1 << 34, 1 << 33, 2, "memory 1", False, ("memory only",), user_namespaces=True)

    async def memory(self) -> HostMemory:
        await self._step("memory")
        held = {one.spec.uuid: one.spec.memory_bytes for one in self.domains.values()}
        others = {UUID(int=0): self.foreign_memory} if self.foreign_memory else {}
        return HostMemory(
            max(0, self.host_memory - self.foreign_memory - sum(held.values())), held | others, 1 << 30
        )

    def overhead_bytes(self, memory_bytes: int, vcpus: int, mode: Mode) -> int:
        return self.overhead

    async def preflight(self, wants: HostWants) -> tuple[HostNotice, ...]:
        return tuple(self.host_notices)

    def capacity(self, disks_per_zone: int) -> ZoneCapacity:
        return self.zone_capacity

    def disk_limit(self, memory_bytes: int, vcpus: int) -> DiskLimit:
        return self.disks_most

    def capabilities(self) -> Capabilities:
        return self.can

    async def has_seclabel(self, label: str) -> bool:
        return self.can.flask and label in self.seclabels

    async def create(self, spec: DomainSpec) -> DomainId:
        return await complete(self._create(spec))

    async def _create(self, spec: DomainSpec) -> DomainId:
        await self._step("create")
        self._last_id += 1
        domain = MemoryDomain(DomainId(self._last_id), spec)
        domain.agent.file_volumes, domain.agent.resizes = self.file_volumes, self.resizes
        if not self.agent_ready:
            domain.agent.available.clear()
        self.domains[domain.id] = domain
        return domain.id

    async def hotplugs_memory(self, kernel: DomainKernel | None) -> bool:
        return self.hotplug

    async def pause(self, domain: DomainId) -> None:
        await complete(self._pause(domain))

    async def _pause(self, domain: DomainId) -> None:
        await self._step("pause")
        self._get(domain).state = DomainState.PAUSED

    async def unpause(self, domain: DomainId) -> None:
        await complete(self._unpause(domain))

    async def _unpause(self, domain: DomainId) -> None:
        await self._step("unpause")
        self._get(domain).state = DomainState.RUNNING

    async def set_shares(self, domain: DomainId, shares: CpuShares) -> None:
        await complete(self._set_shares(domain, shares))

    async def _set_shares(self, domain: DomainId, shares: CpuShares) -> None:
        await self._step("set_shares")
        self._get(domain).cpu_shares.append(shares)

    async def set_disk_rates(self, domain: DomainId, rates: DiskRates) -> None:
        await complete(self._set_disk_rates(domain, rates))

    async def _set_disk_rates(self, domain: DomainId, rates: DiskRates) -> None:
        await self._step("set_disk_rates")
        self._get(domain).disk_rates.append(rates)

    async def set_memory(self, domain: DomainId, memory_bytes: int) -> None:
        await complete(self._set_memory(domain, memory_bytes))

    async def _set_memory(self, domain: DomainId, memory_bytes: int) -> None:
        await self._step("set_memory")
        self.targets.append(memory_bytes)
        self._get(domain).resize(memory_bytes=memory_bytes)

    async def set_vcpus(self, domain: DomainId, vcpus: int) -> None:
        await complete(self._set_vcpus(domain, vcpus))

    async def _set_vcpus(self, domain: DomainId, vcpus: int) -> None:
        await self._step("set_vcpus")
        self._get(domain).resize(vcpus=vcpus)

    async def destroy(self, domain: DomainId) -> None:
        await complete(self._destroy(domain))

    async def _destroy(self, domain: DomainId) -> None:
        await self._step("destroy")
        found = self.domains.get(domain)
        if found is not None and found.spec.mark:  # an unmarked domain is foreign
            del self.domains[domain]
            self.destroyed.append(found.spec.environment["XENPOD_ZONE"])
            await found.agent.stop()

    async def claim(self, uuid: UUID, name: str, mark: str) -> DomainInfo | None:
        await self._step("claim")
        found = await self.find(uuid)
        if found is not None:
            domain = self.domains[found.id]
            domain.spec = replace(domain.spec, name=name, mark=domain.spec.mark or mark)
        return await self.find(uuid)

    async def list(self) -> list[DomainInfo]:
        await self._step("list")
        return [
            DomainInfo(
                id=one.id,
                uuid=one.spec.uuid,
                name=one.spec.name,
                state=one.state,
                memory_bytes=one.memory,
                vcpus=one.spec.most_vcpus,
                cpu_time_ns=one.cpu_time_ns,
                shutdown_reason=one.reason,
                mark=one.spec.mark,
                held_bytes=max(one.counted, one.kept),
                vcpus_online=one.online,
            )
            for one in self.domains.values()
        ]

    async def find(self, uuid: UUID) -> DomainInfo | None:
        return next((found for found in await self.list() if found.uuid == uuid), None)

    async def attach_disk(self, domain: DomainId, disk: DiskSpec) -> None:
        await complete(self._attach_disk(domain, disk))

    async def _attach_disk(self, domain: DomainId, disk: DiskSpec) -> None:
        await self._step("attach_disk")
        disks = self._get(domain).disks
        if disk.vdev in disks:
            raise Exists("attach disk", disk.vdev, "attached already")
        disks[disk.vdev] = disk

    def abandon(self, domain: DomainId) -> None:
        if domain in self.domains:
            self.domains[domain].abandoned.set()

    async def detach_disk(self, domain: DomainId, vdev: str) -> None:
        await complete(self._detach_disk(domain, vdev))

    async def _detach_disk(self, domain: DomainId, vdev: str) -> None:
        await self._step("detach_disk")
        if domain in self.domains:
            if self.domains[domain].keeps_disks:
                await self.domains[domain].abandoned.wait()
            self.domains[domain].disks.pop(vdev, None)

    async def disks(self, domain: DomainId) -> builtins.list[str]:
        return sorted(self._get(domain).disks)

    async def attach_pci(self, domain: DomainId, address: str) -> None:
        await complete(self._attach_pci(domain, address))

    async def _attach_pci(self, domain: DomainId, address: str) -> None:
        await self._step("attach_pci")
        self._get(domain).functions.add(address)

    async def detach_pci(self, domain: DomainId, address: str) -> None:
        await self._step("detach_pci")
        if domain in self.domains:
            self.domains[domain].functions.discard(address)

    async def share(self, domain: DomainId) -> str:
        await self._step("share")
        self._get(domain).shares += 1
        return "s1"

    def share_ends(self) -> AsyncIterator[ShareEnd]:
        return self.share_listeners.listen(())

    async def host_interface(self, domain: DomainId, index: int) -> str:
        return f"vif{domain}.{index}"

    async def open_channel(self, domain: DomainId) -> MemoryTransport:
        found = self._get(domain)
        if found.state is DomainState.SHUTDOWN:
            raise DomainGone("open channel", found.spec.name, "it has ended")
        return await found.agent.dial()

    async def deaths(self) -> AsyncIterator[DomainDeath]:
        self._deaths = asyncio.Queue()
        for domain in self.domains.values():
            if domain.reason is not None:
                self._deaths.put_nowait(DomainDeath(domain.spec.uuid, domain.reason))
        while True:
            yield await self._deaths.get()

    async def console(self, domain: DomainId, limit: int) -> bytes:
        return self._get(domain).console[-limit:]

    async def forget_console(self, name: str) -> None:
        self.forgotten.append(name)

    def console_log(self, domain: DomainId) -> Path:
        self._get(domain)
        return self.consoles / f"{domain}.log"

    # -- changes of a domain by a test

    def of_zone(self, zone_id: str) -> MemoryDomain:
        return next(one for one in self.domains.values() if one.spec.environment["XENPOD_ZONE"] == zone_id)

    def kill(self, zone_id: str, reason: ShutdownReason = ShutdownReason.CRASH) -> None:
        domain = self.of_zone(zone_id)
        domain.state, domain.reason = DomainState.SHUTDOWN, reason
        domain.agent.cut()
        self._deaths.put_nowait(DomainDeath(domain.spec.uuid, reason))

    def gate(self, operation: str) -> tuple[asyncio.Event, asyncio.Event]:
        """(set once the operation has been entered, set it to let the operation go on)."""
        self.entered[operation], self.gates[operation] = asyncio.Event(), asyncio.Event()
        return self.entered[operation], self.gates[operation]

    async def _step(self, operation: str) -> None:
        if operation in self.entered:
            self.entered[operation].set()
            await self.gates[operation].wait()
        if operation in self.failing:
            raise ToolstackError(operation, "domain", "failed on purpose")

    def _get(self, domain: DomainId) -> MemoryDomain:
        try:
            return self.domains[domain]
        except KeyError:
            raise DomainGone("find domain", str(domain), "no such domain") from None
