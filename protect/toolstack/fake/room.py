"""The room for zones that the fake says it has: its settings, so that tests can have any host."""

from __future__ import annotations

import builtins
from uuid import UUID

from protect.model.host import DiskLimit, HostMemory, HostNotice, HostWants, Mode, ZoneRoom
from protect.model.toolstack import DomainSpec
from protect.toolstack.fake.faultplan import FaultInjector
from protect.toolstack.fake.settings import FakeSettings

_NAMES = 676
"""From xvda to xvdyz."""


class SaysRoom:
    """The part of the toolstack's port about the host."""

    _settings: FakeSettings
    _faults: FaultInjector

    def _specs(self) -> builtins.list[DomainSpec]:
        raise NotImplementedError

    async def memory(self) -> HostMemory:
        domains = {spec.uuid: spec.memory_bytes + self._settings.domain_overhead for spec in self._specs()}
        foreign = self._faults.foreign_memory()
        # A domain of nobody's: no zone of protectd has its uuid.
        strangers = {UUID(int=0): foreign} if foreign else {}
        free = 0 if self._faults.exhausted() else self._settings.zone_memory - foreign - sum(domains.values())
        return HostMemory(max(0, free), domains | strangers)

    def overhead_bytes(self, memory_bytes: int, vcpus: int, mode: Mode) -> int:
        return self._settings.domain_overhead

    async def preflight(self, wants: HostWants) -> tuple[HostNotice, ...]:
        most = self._settings.domains_most
        if not 0 < most < wants.zones:
            return ()
        effect = f"{most} zones fit, limits.zones of protectd.toml is {wants.zones}"
        return (HostNotice("fake.domains_most", "protectd.toml", str(most), str(wants.zones), effect),)

    def room(self, disks_per_zone: int) -> ZoneRoom:
        most = self._settings.domains_most
        return ZoneRoom(most, f"fake.domains_most is {most}") if most else ZoneRoom()

    def disk_limit(self, memory_bytes: int, vcpus: int) -> DiskLimit:
        if not (each := self._settings.disk_memory):
            return DiskLimit(_NAMES, "there are no more names")
        bound = f"each takes {each} bytes (fake.disk_memory), and of its {memory_bytes} half are for disks"
        return DiskLimit(memory_bytes // 2 // each, bound)
