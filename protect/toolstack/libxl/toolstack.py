"""The ``Toolstack`` on Xen."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from uuid import UUID

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Invalid
from daemonkit.tasks import race
from protect.model.domain.shares import DiskRates
from protect.model.errors import DomainGone, ToolstackError
from protect.model.toolstack import (
    Capabilities,
    DiskSpec,
    DomainDeath,
    DomainId,
    DomainInfo,
    DomainKernel,
    DomainSpec,
    PhysicalInfo,
    ShareEnd,
)
from protect.model.transport import Transport
from protect.network.splice import move_interface
from protect.toolstack.completion import completed
from protect.toolstack.console import Consoles
from protect.toolstack.libxl import boot as booting
from protect.toolstack.libxl.capacity.admit import Admission, capabilities
from protect.toolstack.libxl.capacity.host import AsksHost, XenHost
from protect.toolstack.libxl.channel import VchanChannels
from protect.toolstack.libxl.config import domain_config, first_vcpus
from protect.toolstack.libxl.deaths import DomainRegistry, Known
from protect.toolstack.libxl.devices.disks import Disks, backend_rates
from protect.toolstack.libxl.devices.pci import PciFunctions, PciVerbs
from protect.toolstack.libxl.guest_logs import GuestLogs
from protect.toolstack.libxl.kernels import ADDONS, KernelCache
from protect.toolstack.libxl.resizing.scheduling import Scheduling
from protect.toolstack.libxl.resizing.sizes import DomainSizes, LibxlResizing
from protect.toolstack.libxl.settings import LibxlSettings
from protect.toolstack.libxl.sharing import Sharing
from protect.toolstack.libxl.transport import VchanTransport
from protect.toolstack.libxl.workers import Workers, xen_faults
from protect.toolstack.libxl.xenstore.census import Census
from protect.toolstack.libxl.xenstore.store import AsyncStore
from protect.toolstack.libxl.xenstore.xenstored import Xenstored
from xenbind import domain as xen
from xenbind import errors, nic, physinfo, sched
from xenbind.raw import Unavailable


class LibxlToolstack(AsksHost, LibxlResizing, Consoles, PciVerbs):
    """Domains by libxl.  ``state_dir`` holds the cache of unpacked kernels, and the files of file servers."""

    name = "libxl"

    def __init__(self, state_dir: Path, guest_dir: Path, settings: LibxlSettings | None = None) -> None:
        super().__init__()
        self._settings = settings or LibxlSettings()
        self._guest_dir = guest_dir
        self._cache = state_dir / "kernels"
        launcher, shares = (guest_dir / "share").absolute(), (state_dir / "shares").absolute()
        self._sharing = Sharing(launcher, shares, self._settings.share_memory)
        self._closing = AsyncExitStack()

    async def start(self) -> None:
        try:
            async with AsyncExitStack() as undo:
                await self._open(undo)
                self._closing = undo.pop_all()
            mine = {domain.uuid for domain in await self.list()}
            await self._sharing.adopt(mine)
            await self._disks.remove_strays(mine)
            await self._disks.claim_again(self._registry.domids())
        except Unavailable as error:
            raise ToolstackError("start", "libxl", str(error)) from error
        except (errors.XenError, OSError) as error:
            hint = "this machine has to run Xen, with this system as dom0 and xenstored running"
            raise ToolstackError("start", "libxl", str(error), hint) from error

    async def _open(self, undo: AsyncExitStack) -> None:
        self._boot = await asyncio.to_thread(booting.find_boot, self._settings, self._guest_dir, self._cache)
        self._kernels = KernelCache(self._boot, self._guest_dir, self._cache / "others")
        await asyncio.to_thread(self._kernels.prepare)
        undo.push_async_callback(self._sharing.close)
        self._workers = Workers(self._settings.threads)
        undo.push_async_callback(asyncio.to_thread, self._workers.close)
        await self._workers.open()
        self._capabilities = await capabilities(self._workers, self._boot)
        self._admission = Admission(self._workers, self._capabilities)
        self._host = XenHost(self._workers, self._boot, self._sharing, self._capabilities)
        await self._host.open()
        self._scheduling = Scheduling(self._workers, await self._workers.ask(sched.scheduler))
        await self._scheduling.raise_dom0(self._settings.dom0_weight)
        self._store = await asyncio.to_thread(AsyncStore)
        undo.callback(self._store.close)
        self._sizes = DomainSizes(self._workers, self._store)
        self._channels = VchanChannels(self._store, self._settings.stale_channel)
        undo.callback(self._channels.close)
        rates = backend_rates(self._store, lambda domid: self._registry.reconnected(domid))
        undo.push_async_callback(rates.close)
        self._disks = Disks(self._workers, self._store, self._settings.disk_patience, rates)
        undo.callback(self._disks.close)
        self._pci = PciFunctions(self._workers, iommu=self._capabilities.iommu)
        self._logs = GuestLogs(self._settings.console_dir)
        self._registry = DomainRegistry(lambda known: self._channels.ended(known.domid))
        undo.push_async_callback(asyncio.to_thread, self._registry.close)
        self._census = Census(self._workers, self._store, self._registry)
        self._xenstored = Xenstored(self._store, self._workers, self._registry)
        for work in (self._logs.trim_for_ever(self._registry.names), self._xenstored.watch()):
            undo.callback(asyncio.ensure_future(work).cancel)

    async def close(self) -> None:
        await self.idle()
        await self._closing.aclose()

    @completed
    async def physical_info(self) -> PhysicalInfo:
        with xen_faults("read host info", ""):
            info = await self._workers.ask(physinfo.physinfo)
            notices = (*await self._admission.notices(), *await self._scheduling.notices())
        guests = sum(one.memory_bytes for one in await self.list() if one.uuid in self._registry.uuids())
        return PhysicalInfo(
            total_memory_bytes=info.free_bytes + guests,
            free_memory_bytes=info.free_bytes,
            cpus=info.cpus,
            version=info.version,
            security_boundary=True,
            notices=(*self._xenstored.notices(), *self._logs.notices(), *notices),
            user_namespaces=self._boot.user_namespaces,
            kernels=True,
        )

    def capabilities(self) -> Capabilities:
        return self._capabilities

    @completed
    async def hotplugs_memory(self, kernel: DomainKernel | None) -> bool:
        with xen_faults("read zone kernel", kernel.name if kernel else ""):
            async with self._kernels.unpacked(kernel) as boot:
                return boot.hotplug

    @completed
    async def create(self, spec: DomainSpec) -> DomainId:
        with xen_faults("create domain", spec.name):
            async with (
                self._kernels.unpacked(spec.kernel) as boot,
                self._admission.admit(spec, boot),
                AsyncExitStack() as undo,
            ):
                if spec.shared:
                    await asyncio.to_thread(self._sharing.enter, spec.uuid, spec.name, spec.shared)
                    undo.push_async_callback(self._sharing.forget, spec.uuid)
                pool = await self._sizes.pool(spec.cpupool)
                config = domain_config(spec, boot, self._settings.kernel_arguments, pool)
                undo.push_async_callback(asyncio.to_thread, self._logs.forget, spec.name)
                domid = await self._workers.run(xen.create_domain, config)
                undo.callback(self._disks.forget, domid)
                undo.push_async_callback(self._workers.run, xen.destroy, domid)
                checkpoint("libxl-create.made")
                if spec.vcpus < first_vcpus(spec):
                    await self._sizes.set_vcpus(domid, spec.vcpus)
                await self._add_devices(domid, spec)
                checkpoint("libxl-create.wired")
                self._registry.add(domid, spec.uuid, spec.name, spec.mark)
                undo.pop_all()
        return DomainId(domid)

    async def _add_devices(self, domid: int, spec: DomainSpec) -> None:
        """Give a domain its seed and its addons disk, and connect the interfaces that libxl made."""
        await self._store.seed(domid)
        for interface in await self._workers.ask(nic.nics, domid) if spec.interfaces else []:
            await self._store.write_below(interface.backend, "hotplug-status", "connected")
            if spec.netns:
                await move_interface(f"vif{domid}.{interface.devid}", spec.netns)
        if spec.kernel and spec.kernel.addons:
            await self._disks.attach(domid, DiskSpec(ADDONS, spec.kernel.addons))

    @completed
    async def pause(self, domain: DomainId) -> None:
        self._living("pause domain", domain)
        with xen_faults("pause domain", str(domain)):
            await self._workers.run(xen.pause, domain)

    @completed
    async def unpause(self, domain: DomainId) -> None:
        self._living("unpause domain", domain)
        with xen_faults("unpause domain", str(domain)):
            await self._workers.run(xen.unpause, domain)

    @completed
    async def set_disk_rates(self, domain: DomainId, rates: DiskRates) -> None:
        known = self._living("set disk rates", domain)
        with xen_faults("set disk rates", f"domain {domain}"):
            async with known.lock:
                await self._disks.hold_rates(known, rates)

    def abandon(self, domain: DomainId) -> None:
        if (known := self._registry.get(domain)) is not None:
            known.abandoned.set()

    @completed
    async def destroy(self, domain: DomainId) -> None:
        if (known := self._registry.get(domain)) is None:
            return
        known.abandoned.set()
        with xen_faults("destroy domain", str(domain)):
            async with known.lock:
                if self._registry.get(domain) is not known:
                    return  # another destroy was faster
                # Xen cannot end a domain quickly while other domains map its pages.
                self._channels.disconnect(domain)
                self._sharing.abandon(known.uuid)
                checkpoint("libxl-destroy.disconnected")
                await self._disks.lift_rates(known)
                with suppress(errors.DomainNotFound):  # the domain is gone already
                    await self._workers.run(xen.destroy, domain, known.uuid)
                checkpoint("libxl-destroy.destroyed")
                await self._forget(known)

    async def _forget(self, known: Known) -> None:
        """Release our resources of a destroyed domain."""
        self._registry.remove(known.domid)
        self._channels.forget(known.domid)
        self._disks.forget(known.domid)
        await self._disks.forget_rates(known)
        await self._sharing.forget(known.uuid)
        await asyncio.to_thread(self._logs.forget, known.name)

    @completed
    async def list(self) -> list[DomainInfo]:
        with xen_faults("list domains", ""):
            listed, vanished = await self._census.take()
            for known in vanished:
                if not known.lock.locked():  # a held lock: we are destroying the domain
                    await self._forget(known)
        return listed

    @completed
    async def claim(self, uuid: UUID, name: str, mark: str) -> DomainInfo | None:
        with xen_faults("claim domain", name):
            return await self._census.claim(uuid, name, mark)

    async def find(self, uuid: UUID) -> DomainInfo | None:
        return next((domain for domain in await self.list() if domain.uuid == uuid), None)

    @completed
    async def attach_disk(self, domain: DomainId, disk: DiskSpec) -> None:
        known = self._living("attach disk", domain)
        with xen_faults("attach disk", f"{disk.vdev} of domain {domain}"):
            async with known.lock:
                await self._disks.attach(domain, disk)

    @completed
    async def detach_disk(self, domain: DomainId, vdev: str) -> None:
        if (known := self._registry.get(domain)) is not None:
            with xen_faults("detach disk", f"{vdev} of domain {domain}"):
                await self._disks.detach(known, vdev)

    @completed
    async def disks(self, domain: DomainId) -> builtins.list[str]:
        self._living("list disks", domain)
        with xen_faults("list disks", str(domain)):
            return [vdev for vdev in await self._disks.list(domain) if vdev != ADDONS]

    @completed
    async def share(self, domain: DomainId) -> str:
        known = self._living("share", domain)
        with xen_faults("share", f"domain {domain}"):
            async with known.lock:
                # Domains of an earlier release have QEMU's 9pfs.
                qemu = await self._store.list(f"/local/domain/{domain}/device/9pfs")
                return "" if qemu else await self._sharing.serve(known.uuid, domain)

    @completed
    async def host_interface(self, domain: DomainId, index: int) -> str:
        self._living("find interface", domain)
        with xen_faults("find interface", str(domain)):
            nics = await self._workers.ask(nic.nics, domain)
        if index not in [interface.devid for interface in nics]:
            raise Invalid("find interface", f"{index} of domain {domain}", "it has no such interface")
        return f"vif{domain}.{index}"

    async def open_channel(self, domain: DomainId) -> Transport:
        known = self._living("open channel", domain)
        with xen_faults("open channel", f"domain {domain}"):
            opened = await race(self._channels.connect(domain), known.ended.wait())
        if isinstance(opened, VchanTransport):
            return opened
        raise DomainGone("open channel", f"domain {domain}", "it ended")

    def deaths(self) -> AsyncIterator[DomainDeath]:
        return self._registry.listen()

    def share_ends(self) -> AsyncIterator[ShareEnd]:
        return self._sharing.listen()

    def console_log(self, domain: DomainId) -> Path:
        if (known := self._registry.get(domain)) is None:
            raise DomainGone("read console", f"domain {domain}", "no such domain")
        return self._logs.console(known.name)

    async def forget_console(self, name: str) -> None:
        await asyncio.to_thread(self._logs.forget, name)
