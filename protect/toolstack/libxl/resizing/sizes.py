"""Memory and vCPUs of running domains on Xen, changed through the guest's balloon and xenstore.

Xen enforces a domain's memory even if its balloon does not cooperate.  The nodes in xenstore only ask for
vCPUs: Xen lets a domain start every vCPU that it was created with.  Therefore the scheduler's cap limits the
extra vCPUs.
"""

from __future__ import annotations

from daemonkit.faults import Exhausted, Invalid, Missing
from daemonkit.quantity import in_mib
from protect.model.domain.shares import CpuShares
from protect.model.errors import DomainGone
from protect.model.toolstack import DomainId
from protect.toolstack.completion import Completing, completed
from protect.toolstack.libxl.config import HOTPLUG_MAX, paging_pool_bytes
from protect.toolstack.libxl.deaths import DomainRegistry, Known
from protect.toolstack.libxl.resizing.scheduling import Scheduling
from protect.toolstack.libxl.workers import Workers, xen_faults
from protect.toolstack.libxl.xenstore.store import AsyncStore
from xenbind import domain as xen
from xenbind import errors, physinfo, sched

_KIB = 1024
_DIGITS = 16
_ONLINE = b"online"


class DomainSizes:
    """Sets sizes, and reads the number of vCPUs that a domain was told to run.  XenError, OSError."""

    def __init__(self, workers: Workers, store: AsyncStore) -> None:
        self._workers = workers
        self._store = store

    async def set_memory(self, domid: int, memory_bytes: int) -> None:
        """Exhausted: Xen lacks the memory; Invalid: above the domain's maximum from its creation."""
        subject, node = f"domain {domid}", f"/local/domain/{domid}"
        built = await self._kib(f"{node}/memory/static-max")
        most = max(built, await self._kib(f"{node}/{HOTPLUG_MAX}"))
        if memory_bytes > most:
            cause = f"{in_mib(memory_bytes)} wanted, it was created for at most {in_mib(most)}"
            raise Invalid("set memory", subject, cause)
        info = await self._workers.ask(xen.info, domid)
        missing = memory_bytes - info.memory_kib * _KIB
        free = (await self._workers.ask(physinfo.physinfo)).free_bytes
        if missing > free:
            cause = f"it needs {in_mib(missing)} more, Xen has {in_mib(free)} free"
            raise Exhausted("set memory", subject, cause)
        if memory_bytes > built:
            pool = paging_pool_bytes(memory_bytes, info.vcpus)
            await self._workers.run(xen.grow_paging_pool, domid, pool // _KIB)
            # libxl accepts no target above this node.  The guest reads the node only at its start.
            await self._store.write_below(f"{node}/memory", "static-max", str(memory_bytes // _KIB))
        await self._workers.run(xen.set_memory, domid, memory_bytes // _KIB)

    async def _kib(self, path: str) -> int:
        """A size in KiB, in bytes; 0: no such node, or no number."""
        value = await self._store.read(path) or b""
        return int(value) * _KIB if value.isdigit() and len(value) < _DIGITS else 0

    async def set_vcpus(self, domid: int, vcpus: int) -> None:
        """Invalid: zero, or more than at the domain's creation."""
        most = (await self._workers.ask(xen.info, domid)).vcpus
        if not 1 <= vcpus <= most:
            raise Invalid("set vCPUs", f"domain {domid}", f"{vcpus} are not 1 to {most}")
        await self._workers.run(xen.set_vcpus, domid, vcpus, most)

    async def pool(self, name: str) -> dict[str, int]:
        """The pool of CPUs in the form of libxl's configuration.  Missing: no such pool."""
        if not name:
            return {}
        try:
            return {"poolid": await self._workers.ask(sched.pool_id, name)}
        except errors.XenError as error:
            cause, hint = f"there is no pool of CPUs {name}", "xl cpupool-list shows those that there are"
            raise Missing("create domain", name, cause, hint) from error

    async def vcpus(self, domid: int) -> int:
        """The number of vCPUs that the domain was told to run."""
        root = f"/local/domain/{domid}/cpu"
        told = [
            await self._store.read(f"{root}/{number}/availability") for number in await self._store.list(root)
        ]
        return max(1, told.count(_ONLINE))


class LibxlResizing(Completing):
    """The ``Resizable`` part of the toolstack."""

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
        """A living domain; DomainGone otherwise."""
        known = self._registry.get(domain)
        if known is None or known.reason is not None:
            raise DomainGone(operation, f"domain {domain}", "it has ended" if known else "no such domain")
        return known
