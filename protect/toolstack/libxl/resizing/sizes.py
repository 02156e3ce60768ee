"""Domains' memory and vCPUs on Xen, changed while they run: by the guest's balloon, and by xenstore.

Xen holds a domain to its memory whatever its balloon does, but lets it start every vCPU that it was created
with: the nodes in xenstore only ask.  So the cap of its scheduler holds those that it was not given.
"""

from __future__ import annotations

from daemonkit.faults import Exhausted, Invalid, Missing
from protect.model.domain.shares import CpuShares
from protect.model.errors import DomainGone
from protect.model.toolstack import DomainId
from protect.toolstack.completion import Completing, completed
from protect.toolstack.libxl.deaths import DomainRegistry, Known
from protect.toolstack.libxl.resizing.scheduling import Scheduling
from protect.toolstack.libxl.workers import Workers, xen_faults
from protect.toolstack.libxl.xenstore.store import AsyncStore
from xenbind import domain as xen
from xenbind import errors, physinfo, sched

_KIB = 1024
_MIB = 1 << 20
_ONLINE = b"online"


class DomainSizes:
    """Sets sizes, and knows how many vCPUs a domain was told to run.  Errors are XenError and OSError."""

    def __init__(self, workers: Workers, store: AsyncStore) -> None:
        self._workers = workers
        self._store = store

    async def set_memory(self, domid: int, memory_bytes: int) -> None:
        """Exhausted: Xen has not so much; Invalid: the domain was created for less."""
        subject = f"domain {domid}"
        most = int(await self._store.read(f"/local/domain/{domid}/memory/static-max") or b"0") * _KIB
        if memory_bytes > most:
            cause = f"{_mib(memory_bytes)} wanted, it was created for at most {_mib(most)}"
            raise Invalid("set memory", subject, cause)
        missing = memory_bytes - (await self._workers.ask(xen.info, domid)).memory_kib * _KIB
        free = (await self._workers.ask(physinfo.physinfo)).free_bytes
        if missing > free:
            cause = f"it needs {_mib(missing)} more, Xen has {_mib(free)} free"
            raise Exhausted("set memory", subject, cause)
        await self._workers.run(xen.set_memory, domid, memory_bytes // _KIB)

    async def set_vcpus(self, domid: int, vcpus: int) -> None:
        """Invalid: none, or more than it was created with."""
        most = (await self._workers.ask(xen.info, domid)).vcpus
        if not 1 <= vcpus <= most:
            raise Invalid("set vCPUs", f"domain {domid}", f"{vcpus} are not 1 to {most}")
        await self._workers.run(xen.set_vcpus, domid, vcpus, most)

    async def pool(self, name: str) -> dict[str, int]:
        """What libxl's configuration of a domain says of its pool of CPUs.  Missing: there is none."""
        if not name:
            return {}
        try:
            return {"poolid": await self._workers.ask(sched.pool_id, name)}
        except errors.XenError as error:
            cause, hint = f"there is no pool of CPUs {name}", "xl cpupool-list shows those that there are"
            raise Missing("create domain", name, cause, hint) from error

    async def vcpus(self, domid: int) -> int:
        """How many the domain was told to run."""
        root = f"/local/domain/{domid}/cpu"
        told = [
            await self._store.read(f"{root}/{number}/availability") for number in await self._store.list(root)
        ]
        return max(1, told.count(_ONLINE))


class LibxlResizing(Completing):
    """The part of the toolstack that is ``Resizable``."""

    _registry: DomainRegistry
    _scheduling: Scheduling
    _sizes: DomainSizes

    @completed
    async def set_shares(self, domain: DomainId, shares: CpuShares) -> None:
        self._living("set CPU shares", domain)
        with xen_faults("set CPU shares", f"domain {domain}"):
            await self._scheduling.set(domain, shares, await self._sizes.vcpus(domain))

    @completed
    async def set_memory(self, domain: DomainId, memory_bytes: int) -> None:
        self._living("set memory", domain)
        with xen_faults("set memory", f"domain {domain}"):
            await self._sizes.set_memory(domain, memory_bytes)

    @completed
    async def set_vcpus(self, domain: DomainId, vcpus: int) -> None:
        self._living("set vCPUs", domain)
        with xen_faults("set vCPUs", f"domain {domain}"):
            await self._sizes.set_vcpus(domain, vcpus)

    def _living(self, operation: str, domain: DomainId) -> Known:
        """A domain that is alive; DomainGone otherwise."""
        known = self._registry.get(domain)
        if known is None or known.reason is not None:
            raise DomainGone(operation, f"domain {domain}", "it has ended" if known else "no such domain")
        return known


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:.0f} MiB"
