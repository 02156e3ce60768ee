"""The size of a running fake domain: the memory of its control group, and the vCPUs reported to its agent."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import UUID

from daemonkit.faults import Exhausted, Invalid
from protect.model.domain.shares import CpuShares
from protect.model.errors import DomainGone
from protect.model.toolstack import DomainId, DomainKernel, DomainSpec, DomainState
from protect.toolstack.completion import Completing, completed
from protect.toolstack.fake import faultplan
from protect.toolstack.fake.domain import Domain, write_spec
from protect.toolstack.fake.fake_settings import MIB, FakeSettings, SaysCapacity
from protect.toolstack.fake.faultplan import FaultInjector
from protect.toolstack.fake.home import Home
from protect.toolstack.fake.system import system_faults


class FakeResizing(SaysCapacity, Completing):
    """The ``Resizable`` part of the toolstack; it also finds and changes domains."""

    _home: Home
    _settings: FakeSettings
    _faults: FaultInjector
    _domains: dict[UUID, Domain]
    _creating: dict[UUID, DomainSpec]

    @completed
    async def set_shares(self, domain: DomainId, shares: CpuShares) -> None:
        found = self._living("set CPU shares", domain)
        async with self._changing(found, "set_shares", "set CPU shares"):
            await asyncio.to_thread(self._home.cgroups.share, found.spec, shares)

    async def hotplugs_memory(self, kernel: DomainKernel | None) -> bool:
        return True

    @completed
    async def set_memory(self, domain: DomainId, memory_bytes: int) -> None:
        found = self._living("set memory", domain)
        if memory_bytes > found.spec.most_memory:
            most = found.spec.most_memory / MIB
            cause = f"{memory_bytes / MIB:.0f} MiB wanted, it was created for at most {most:.0f} MiB"
            raise Invalid("set memory", found.spec.name, cause)
        async with self._changing(found, "set_memory", "set memory"):
            more = memory_bytes - found.spec.memory_bytes
            if more > (free := (await self.memory()).free):
                cause = f"it needs {more / MIB:.0f} MiB more, {free / MIB:.0f} MiB are free"
                raise Exhausted("set memory", found.spec.name, cause)
            await asyncio.to_thread(self._home.cgroups.set_memory, str(found.spec.uuid), memory_bytes)
            self._resized(found, replace(found.spec, memory_bytes=memory_bytes))

    @completed
    async def set_vcpus(self, domain: DomainId, vcpus: int) -> None:
        found = self._living("set vCPUs", domain)
        if not 1 <= vcpus <= found.spec.most_vcpus:
            raise Invalid("set vCPUs", found.spec.name, f"{vcpus} are not 1 to {found.spec.most_vcpus}")
        async with self._changing(found, "set_vcpus", "set vCPUs"):
            await asyncio.to_thread(self._home.cgroups.note_vcpus, str(found.spec.uuid), vcpus)
            self._resized(found, replace(found.spec, vcpus=vcpus))

    def _resized(self, domain: Domain, spec: DomainSpec) -> None:
        """Store the size; the maxima stay as they were."""
        before = domain.spec
        domain.spec = replace(spec, memory_max_bytes=before.built_memory, vcpus_max=before.most_vcpus)
        write_spec(domain.directory, domain.spec)

    @asynccontextmanager
    async def _changing(self, domain: Domain, at: str, operation: str) -> AsyncIterator[None]:
        """Hold the domain's lock, and inject the faults planned for ``at``."""
        name = domain.spec.name
        with system_faults(operation, name):
            fault = self._faults.take(at, name)
            await faultplan.before(fault, operation, name)
            async with domain.lock:
                yield
            faultplan.after(fault, operation, name)

    def _living(self, operation: str, domain: DomainId) -> Domain:
        """A living domain; DomainGone otherwise."""
        found = self._by_id(domain)
        if found is None or found.state is DomainState.SHUTDOWN:
            raise DomainGone(operation, str(domain), "it has ended" if found else "no such domain")
        return found

    def _by_id(self, domain: DomainId) -> Domain | None:
        return next((found for found in self._domains.values() if found.id == domain), None)

    def _specs(self) -> builtins.list[DomainSpec]:
        """Specs of all domains, including those under creation."""
        return [*(domain.spec for domain in self._domains.values()), *self._creating.values()]
