"""PCI functions of domains: bound to pciback, attached, detached and reset.

A function stays with pciback after its use by a domain: its own driver in dom0 would trust state that the
domain left in the function.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path

from daemonkit.faults import Exists, Refused
from protect.host import pci as host
from protect.model.toolstack import DomainId
from protect.toolstack.completion import Completing, completed
from protect.toolstack.libxl.deaths import DomainRegistry, Known
from protect.toolstack.libxl.workers import Workers, xen_faults
from xenbind import disk as functions
from xenbind import domain as domains
from xenbind import errors
from xenbind.context import Context

log = logging.getLogger(__name__)

_OPERATION = "attach PCI function"
_PCIBACK = Path("/sys/bus/pci/drivers/pciback")


class PciFunctions:
    """``iommu``: whether Xen uses an IOMMU."""

    def __init__(self, workers: Workers, *, iommu: bool) -> None:
        self._workers = workers
        self._iommu = iommu
        self._lock = asyncio.Lock()
        """One change at a time: libxl checks a function's owner before it assigns the function."""

    async def attach(self, domid: int, address: str) -> None:
        """Attach a function.  Refused, Missing, Exists as in the port; XenError."""
        async with self._lock:
            if address in await self.list(domid):
                raise Exists(_OPERATION, f"{address} of domain {domid}", "attached already")
            await asyncio.to_thread(host.check_function, address)
            await self._refuse_impossible(domid, address)
            fresh = await asyncio.to_thread(host.driver, address) != host.PCIBACK
            if fresh:
                await self._workers.run(functions.make_assignable, address)
            try:
                await self._workers.run(functions.add_function, domid, address)
            except BaseException:
                await self._withdraw(domid, address, fresh=fresh)
                raise

    async def _refuse_impossible(self, domid: int, address: str) -> None:
        if not self._iommu:
            cause = "this host has no IOMMU that Xen uses: a zone could have the function write to all memory"
            hint = "enable VT-d or AMD-Vi in the firmware, and boot Xen with iommu=1"
            raise Refused(_OPERATION, address, cause, hint)
        if not await self._workers.ask(functions.is_pv, domid):
            cause = "its zone is pvh, and Xen gives PCI functions to pv guests alone"
            raise Refused(_OPERATION, address, cause, 'mode = "pv" for its profile or handler')
        if not await asyncio.to_thread(_PCIBACK.exists):
            raise Refused(_OPERATION, address, "dom0 has no pciback", "modprobe xen-pciback")
        if holder := await self._workers.ask(_holder, address):
            raise Refused(_OPERATION, address, f"{holder} has it")

    async def _withdraw(self, domid: int, address: str, *, fresh: bool) -> None:
        """Undo a failed attach; libxl's own undo may have done part of the work."""
        try:
            if address in await self.list(domid):
                await self._workers.run(functions.remove_function, domid, address, force=True)
            if fresh:
                await self._workers.run(functions.give_back, address)
        except errors.XenError as error:
            log.error("%s is not wholly taken back: %s", address, error)

    async def detach(self, domid: int, address: str) -> None:
        """Detach a function; an unknown function is no error.  A guest that refuses loses it by force."""
        async with self._lock:
            if address not in await self.list(domid):
                return
            try:
                await self._workers.run(functions.remove_function, domid, address)
            except errors.XenError as error:
                log.warning("domain %d does not let %s go: %s", domid, address, error)
            if address in await self.list(domid):
                await self._workers.run(functions.remove_function, domid, address, force=True)
        await self.reset(address)

    async def reset(self, address: str) -> None:
        """Clear the domain's state from the function.  libxl resets it again before its next use."""
        try:
            await asyncio.to_thread(host.reset, address)
        except OSError as error:
            log.warning("%s cannot be reset now: %s", address, error.strerror)

    async def list(self, domid: int) -> list[str]:
        """The addresses of the domain's functions."""
        with suppress(errors.DomainNotFound):
            return await self._workers.ask(functions.functions, domid)
        return []


def _holder(context: Context, address: str) -> str:
    """The name of the domain that has a function; "" for none."""
    for info in domains.domains(context):
        with suppress(errors.DomainNotFound):
            if address in functions.functions(context, info.domid):
                return info.name or f"domain {info.domid}"
    return ""


class PciVerbs(Completing):
    """The port's verbs for PCI functions."""

    _pci: PciFunctions
    _registry: DomainRegistry

    def _living(self, operation: str, domain: DomainId) -> Known:
        raise NotImplementedError

    @completed
    async def attach_pci(self, domain: DomainId, address: str) -> None:
        known = self._living("attach PCI function", domain)
        with xen_faults("attach PCI function", f"{address} of domain {domain}"):
            async with known.lock:
                await self._pci.attach(domain, address)

    @completed
    async def detach_pci(self, domain: DomainId, address: str) -> None:
        if (known := self._registry.get(domain)) is not None:
            with xen_faults("detach PCI function", f"{address} of domain {domain}"):
                async with known.lock:
                    await self._pci.detach(domain, address)
