"""Refuses impossible domains early; libxl would take seconds to fail."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from daemonkit.faults import Exhausted, Exists, Invalid, Unreachable
from protect.host.disk_rates.backends import can_hold_rates
from protect.model.capacity.modes import kernel_lacks, refuse_impossible_label, refuse_impossible_mode
from protect.model.toolstack import Capabilities, DomainSpec
from protect.toolstack.libxl.boot import Boot
from protect.toolstack.libxl.capacity.shortage import shortage
from protect.toolstack.libxl.config import map_bytes, overhead_bytes
from protect.toolstack.libxl.workers import Workers
from xenbind import domain as xen
from xenbind import errors, flask, physinfo

_CREATE = "create domain"
_MIB = 1 << 20
_PERMISSIVE = (
    "FLASK is permissive: labels of zones hold nobody back (xl setenforce 1, or flask=enforcing for Xen)"
)


async def capabilities(workers: Workers, boot: Boot) -> Capabilities:
    """Capabilities of this machine with the kernel of ``boot``.  XenError."""
    host = await workers.ask(physinfo.physinfo)
    enforcing = await workers.ask(flask.enforcing)
    return Capabilities(
        host.pv,
        host.hvm,
        host.hap,
        host.iommu,
        host.release,
        boot.modes,
        enforcing is not None,
        disk_rates=can_hold_rates(),
        numa_nodes=host.numa_nodes,
        own_clocks=True,
    )


class Admission:
    """Knows the host, and the domains under creation."""

    def __init__(self, workers: Workers, capabilities: Capabilities) -> None:
        self._workers = workers
        self._capabilities = capabilities
        self._creating: dict[UUID, str] = {}

    @asynccontextmanager
    async def admit(self, spec: DomainSpec, boot: Boot) -> AsyncIterator[None]:
        """Check the spec, and reserve its name and uuid during the creation."""
        if self._workers.held:
            raise Unreachable(_CREATE, spec.name, "xenstored does not answer", "start it")
        self._check(spec, boot)
        self._creating[spec.uuid] = spec.name
        try:
            existing = await self._workers.ask(xen.domains)
            if any(spec.uuid == info.uuid or spec.name == info.name for info in existing):
                raise _exists(spec)
            await self._check_memory(spec)
            await self._check_label(spec)
            yield
        except errors.XenError as error:
            await self._explain(spec, error)
            raise
        finally:
            del self._creating[spec.uuid]

    async def notices(self) -> tuple[str, ...]:
        """Notices for the operator about the labels of zones.  XenError."""
        return (_PERMISSIVE,) if await self._workers.ask(flask.enforcing) is False else ()

    def _check(self, spec: DomainSpec, boot: Boot) -> None:
        if spec.uuid in self._creating or spec.name in self._creating.values():
            raise _exists(spec)
        refuse_impossible_mode(_CREATE, spec.name, spec.mode, self._capabilities)
        refuse_impossible_label(_CREATE, spec.name, spec.seclabel, self._capabilities)
        if spec.mode not in boot.modes:
            kernel = spec.kernel.name if spec.kernel else boot.kernel.name
            cause = f"the kernel {kernel} is no {spec.mode.value} guest: {kernel_lacks(spec.mode)}"
            raise Invalid(_CREATE, spec.name, cause, "choose another mode, or another kernel")
        if spec.memory_bytes < boot.minimum_bytes + map_bytes(spec):
            need = -(-(boot.minimum_bytes + map_bytes(spec)) // _MIB)
            cause = f"{spec.memory_bytes / _MIB:.0f} MiB of memory, this kernel and initramfs need {need} MiB"
            raise Invalid(_CREATE, spec.name, cause)

    async def _check_memory(self, spec: DomainSpec) -> None:
        need = spec.memory_bytes + overhead_bytes(spec.built_memory, spec.most_vcpus)
        free = (await self._workers.ask(physinfo.physinfo)).free_bytes
        if need > free:
            cause = f"needs {need} bytes of memory with what Xen takes for it, {free} are free"
            raise Exhausted(_CREATE, spec.name, cause)

    async def _check_label(self, spec: DomainSpec) -> None:
        if spec.seclabel and not await self._workers.ask(flask.knows, spec.seclabel):
            cause = f"the hypervisor's policy lacks the label {spec.seclabel}"
            raise Invalid(_CREATE, spec.name, cause, "load a policy that has it (xl loadpolicy)")

    async def _explain(self, spec: DomainSpec, error: errors.XenError) -> None:
        """Raise Exhausted, with Xen's own words, if the host lacked a resource.

        Another domain may have taken the memory during libxl's work.
        """
        try:
            await self._check_memory(spec)
        except Exhausted as exhausted:
            raise Exhausted(_CREATE, spec.name, f"{exhausted.cause}; {error}") from error
        if what := shortage(error.detail):
            raise Exhausted(_CREATE, spec.name, f"the host is short of {what}: {error}") from error


def _exists(spec: DomainSpec) -> Exists:
    return Exists(_CREATE, spec.name, "a domain of that name or uuid exists")
