"""A toolstack whose domains are agents in memory: for tests of the logic above the port."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from uuid import UUID

from daemonkit.faults import Exists
from daemonkit.tasks import complete
from protect.model.errors import DomainGone, ToolstackError
from protect.model.shares import CpuShares
from protect.model.toolstack import (
    Capabilities,
    DiskSpec,
    DomainDeath,
    DomainId,
    DomainInfo,
    DomainSpec,
    DomainState,
    PhysicalInfo,
    ShareEnd,
    ShutdownReason,
)
from protect.toolstack.deaths import Listeners
from tests.support.agent.agent_sim import MemoryTransport, SimAgent


@dataclass
class MemoryDomain:
    """One domain, its agent, and what is attached."""

    id: DomainId
    spec: DomainSpec
    agent: SimAgent = field(default_factory=SimAgent)
    state: DomainState = DomainState.PAUSED
    reason: ShutdownReason | None = None
    disks: dict[str, DiskSpec] = field(default_factory=dict)
    console: bytes = b""
    cpu_shares: list[CpuShares] = field(default_factory=list)
    """All that it has been given, the last one holds."""
    abandoned: asyncio.Event = field(default_factory=asyncio.Event)
    shares: int = 0
    """How often its directory was asked for."""
    keeps_disks: bool = False
    """Until nobody waits for it any more."""


class MemoryToolstack:
    """port.Toolstack; ``failing`` names the operations that fail, ``gates`` those that wait.

    A caller who is cancelled is told so when the step has ended, as the port has it.
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
        """Whether agents know them."""
        self.can = Capabilities()
        self.share_listeners = Listeners[ShareEnd]()
        self.seclabels: set[str] = set()
        self._last_id = 0
        self._deaths: asyncio.Queue[DomainDeath] = asyncio.Queue()

    async def start(self) -> None: ...

    async def close(self) -> None:
        for domain in self.domains.values():
            await domain.agent.stop()

    async def physical_info(self) -> PhysicalInfo:
        return PhysicalInfo(1 << 34, 1 << 33, 2, "memory 1", False, ("memory only",), user_namespaces=True)

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
        domain.agent.file_volumes = self.file_volumes
        if not self.agent_ready:
            domain.agent.available.clear()
        self.domains[domain.id] = domain
        return domain.id

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

    async def destroy(self, domain: DomainId) -> None:
        await complete(self._destroy(domain))

    async def _destroy(self, domain: DomainId) -> None:
        await self._step("destroy")
        found = self.domains.get(domain)
        if found is not None and found.spec.mark:  # what carries no mark is nothing of ours
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
                one.id,
                one.spec.uuid,
                one.spec.name,
                one.state,
                one.spec.memory_bytes,
                1,
                0,
                one.reason,
                one.spec.mark,
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

    # What a test does to a domain.

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
