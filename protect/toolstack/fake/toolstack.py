"""A toolstack without a hypervisor: domains are trees of Linux namespaces.

A domain's first process is the agent that also boots in Xen guests; all code above the port runs unchanged.
THERE IS NO SECURITY BOUNDARY: zones share the host's kernel, and root in one is root on the host.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Invalid
from daemonkit.tasks import join
from protect.model.domain.shares import DiskRates
from protect.model.errors import DomainGone, ToolstackError
from protect.model.toolstack import (
    Capabilities,
    DiskSpec,
    DomainDeath,
    DomainId,
    DomainInfo,
    DomainSpec,
    PhysicalInfo,
    ShareEnd,
    ShutdownReason,
)
from protect.model.transport import Transport
from protect.toolstack.completion import completed
from protect.toolstack.console import Consoles
from protect.toolstack.deaths import Deaths, Listeners
from protect.toolstack.fake import channel, create_domain, disks, faultplan, interfaces, sharing
from protect.toolstack.fake.domain import Domain, read_spec
from protect.toolstack.fake.fake_settings import FakeSettings, physical_info
from protect.toolstack.fake.faultplan import FaultInjector, FaultKind, FaultPlan
from protect.toolstack.fake.home import Home
from protect.toolstack.fake.resizing.sizes import FakeResizing
from protect.toolstack.fake.system import system_faults

log = logging.getLogger(__name__)

NOTICE = "the fake toolstack has NO SECURITY BOUNDARY: zones are namespaces of the host's own kernel"
_END_SECONDS = 10.0

_NODES = Path("/sys/devices/system/node")


class FakeToolstack(FakeResizing, Consoles, disks.FakePciVerbs):
    """A ``Toolstack`` on namespaces; ``run_dir`` keeps the state that must outlive the daemon."""

    name = "fake"

    def __init__(
        self,
        run_dir: Path,
        guest_dir: Path,
        settings: FakeSettings | None = None,
        faults: FaultPlan | None = None,
    ) -> None:
        super().__init__()
        self._home = Home(run_dir, guest_dir)
        self._settings = settings or FakeSettings()
        self._faults = FaultInjector(faults or FaultPlan(), run_dir / "faults.toml")
        self._domains: dict[UUID, Domain] = {}
        self._creating: dict[UUID, DomainSpec] = {}
        self._deaths = Deaths()
        self._share_ends = Listeners[ShareEnd]()
        self._watches: dict[UUID, asyncio.Task[None]] = {}

    async def start(self) -> None:
        log.warning("%s", NOTICE)
        await asyncio.to_thread(self._home.take)
        for uuid in await asyncio.to_thread(self._home.known):
            await self._adopt(uuid)
        mine = {str(uuid) for uuid in self._domains}
        for stray in await asyncio.to_thread(self._home.cgroups.domains) - mine:
            await self._home.cgroups.remove(stray)

    async def close(self) -> None:
        await self.idle()
        for watch in self._watches.values():
            watch.cancel()
        await asyncio.gather(*self._watches.values(), return_exceptions=True)
        self._deaths.close()
        self._share_ends.close()
        if not self._domains:
            await asyncio.to_thread(self._home.cgroups.remove_instance)
        for domain in self._domains.values():
            domain.release()
        self._domains.clear()
        self._home.leave()

    async def _adopt(self, uuid: UUID) -> None:
        spec = await read_spec(self._home.directory(uuid))
        if spec is None:  # killed before it wrote the intent: create had no other effect
            await self._home.forget(uuid)
            return
        quiet = await create_domain.wait_for_launcher(self._home, spec, self._settings.launch_seconds)
        domain = create_domain.find_processes(self._home, spec) if quiet else None
        if domain is None:
            log.warning("domain %s was never finished: removing what there is of it", spec.name)
            await create_domain.remove_domain(self._home, spec)
            return
        if domain.process is None:
            domain.reason = domain.end_reason()
        await asyncio.to_thread(disks.adopt_disks, domain)
        self._enter(domain)

    # -- domains

    async def physical_info(self) -> PhysicalInfo:
        total = self._settings.zone_memory
        return physical_info(total, (await self.memory()).free, NOTICE)

    def capabilities(self) -> Capabilities:
        return replace(
            self._settings.capabilities, disk_rates=self._home.cgroups.can_throttle, numa_nodes=_numa_nodes()
        )

    async def has_seclabel(self, label: str) -> bool:
        return label in self._settings.seclabels

    @completed
    async def create(self, spec: DomainSpec) -> DomainId:
        with system_faults("create domain", spec.name):
            fault = self._faults.take("create", spec.name)
            await faultplan.before(fault, "create domain", spec.name)
            full = fault is not None and fault.kind is FaultKind.EXHAUSTED
            free = 0 if full else (await self.memory()).free
            create_domain.admit(self._settings, spec, self._specs(), free)
            self._creating[spec.uuid] = spec
            try:
                domain = await create_domain.create_domain(self._home, self._settings, spec, fault)
            finally:
                del self._creating[spec.uuid]
            self._enter(domain)
        return domain.id

    @completed
    async def pause(self, domain: DomainId) -> None:
        found = self._living("pause domain", domain)
        self._home.cgroups.freeze(str(found.spec.uuid), frozen=True)

    @completed
    async def unpause(self, domain: DomainId) -> None:
        found = self._living("unpause domain", domain)
        self._thaw(found)
        fault = self._faults.take("unpause", found.spec.name)
        await faultplan.before(fault, "unpause domain", found.spec.name)
        assert found.process is not None
        if not found.process.signal(signal.SIGCONT):
            raise DomainGone("unpause domain", found.spec.name, "it has ended")
        if fault is not None and fault.kind is FaultKind.DIE:
            asyncio.get_running_loop().call_later(fault.after_ms / 1000, found.process.kill)
        faultplan.after(fault, "unpause domain", found.spec.name)

    @completed
    async def set_disk_rates(self, domain: DomainId, rates: DiskRates) -> None:
        found = self._living("set disk rates", domain)
        async with self._changing(found, "set_disk_rates", "set disk rates"):
            await asyncio.to_thread(disks.hold_rates, found, self._home.cgroups, rates)

    @completed
    async def destroy(self, domain: DomainId) -> None:
        found = self._by_id(domain)
        if found is None:
            return
        name = found.spec.name
        with system_faults("destroy domain", name):
            async with found.lock:
                if self._by_id(domain) is not found:
                    return  # another destroy was faster
                fault = self._faults.take("destroy", name)
                await faultplan.before(fault, "destroy domain", name)
                await asyncio.to_thread(self._home.cgroups.lift, str(found.spec.uuid))
                self._thaw(found)  # a frozen process would not die of SIGKILL
                await self._kill(found)
                checkpoint("fake-destroy.killed")
                faultplan.after(fault, "destroy domain", name)
                await asyncio.to_thread(disks.let_go, found)
                found.release()
                await create_domain.remove_domain(self._home, found.spec)
                del self._domains[found.spec.uuid]

    async def list(self) -> list[DomainInfo]:
        return [self._info(domain) for domain in self._domains.values()]

    @completed
    async def claim(self, uuid: UUID, name: str, mark: str) -> DomainInfo | None:
        with system_faults("claim domain", name):
            found = self._domains.get(uuid)
            return self._info(found.claim(mark)) if found else None

    async def find(self, uuid: UUID) -> DomainInfo | None:
        return self._info(found) if (found := self._domains.get(uuid)) else None

    # -- devices

    @completed
    async def attach_disk(self, domain: DomainId, disk: DiskSpec) -> None:
        found = self._living("attach disk", domain)
        async with self._changing(found, "attach_disk", f"attach disk {disk.vdev}"):
            await disks.attach_disk(found, disk)

    @completed
    async def detach_disk(self, domain: DomainId, vdev: str) -> None:
        found = self._by_id(domain)
        if found is not None:
            async with self._changing(found, "detach_disk", f"detach disk {vdev}"):
                await disks.detach(found, vdev)

    async def disks(self, domain: DomainId) -> builtins.list[str]:
        return sorted(self._living("list disks", domain).loops)

    async def share(self, domain: DomainId) -> str:
        return await sharing.share(self._living("share", domain), self._faults, self._share_ends)

    async def host_interface(self, domain: DomainId, index: int) -> str:
        found = self._living("find interface", domain)
        fault = self._faults.take("host_interface", found.spec.name)
        await faultplan.before(fault, "find interface", found.spec.name)
        if not 0 <= index < found.spec.interfaces:
            raise Invalid("find interface", f"{index} of {found.spec.name}", "it has no such interface")
        return interfaces.host_name(self._home.instance, found.spec.uuid, index)

    # -- watching

    async def open_channel(self, domain: DomainId) -> Transport:
        found = self._living("open channel", domain)
        fault = self._faults.take("open_channel", found.spec.name)
        await faultplan.before(fault, "open channel", found.spec.name)
        transport = await channel.connect(found.directory, found.spec.name)
        if fault is not None and fault.kind is FaultKind.STALL:
            return channel.StalledTransport(transport)
        return transport

    def deaths(self) -> AsyncIterator[DomainDeath]:
        return self._deaths.listen(
            DomainDeath(domain.spec.uuid, domain.reason)
            for domain in self._domains.values()
            if domain.reason is not None
        )

    def share_ends(self) -> AsyncIterator[ShareEnd]:
        return self._share_ends.listen(())

    async def forget_console(self, name: str) -> None:
        """Do nothing: the console is in the domain's own directory."""

    def console_log(self, domain: DomainId) -> Path:
        found = self._by_id(domain)
        if found is None:
            raise DomainGone("read console", str(domain), "no such domain")
        return found.console

    # -- inside

    def _enter(self, domain: Domain) -> None:
        self._domains[domain.spec.uuid] = domain
        if domain.reason is None:
            self._watches[domain.spec.uuid] = asyncio.ensure_future(self._watch(domain))

    async def _watch(self, domain: Domain) -> None:
        """Wait for the domain's end, and report it with the reason from the monitor."""
        await create_domain.wait_for_end(domain)
        domain.reason = ShutdownReason.DESTROYED if domain.killed else domain.end_reason()
        self._deaths.tell(DomainDeath(domain.spec.uuid, domain.reason))
        del self._watches[domain.spec.uuid]

    async def _kill(self, domain: Domain) -> None:
        """Kill the domain's processes, and wait until the domain's end has been reported."""
        if domain.reason is None and domain.process is not None:
            domain.killed = True
            domain.process.kill()
        if watch := self._watches.get(domain.spec.uuid):
            try:
                async with asyncio.timeout(_END_SECONDS):
                    await join(watch)
            except TimeoutError:
                raise ToolstackError("destroy domain", domain.spec.name, "its processes do not end") from None

    def _thaw(self, domain: Domain) -> None:
        name, cgroups = str(domain.spec.uuid), self._home.cgroups
        if cgroups.frozen(name):
            cgroups.freeze(name, frozen=False)

    def _info(self, domain: Domain) -> DomainInfo:
        name, cgroups = str(domain.spec.uuid), self._home.cgroups
        return domain.info(cgroups.cpu_time_ns(name), cgroups.memory_limit(name), frozen=cgroups.frozen(name))


def _numa_nodes() -> int:
    """Number of NUMA nodes of the host, which the zones share; 1 if its kernel has no NUMA support."""
    return len(list(_NODES.glob("node[0-9]*"))) or 1
