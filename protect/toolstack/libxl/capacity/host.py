"""The host's memory and room for zones, from Xen, dom0 and their settings."""

from __future__ import annotations

import asyncio

from protect.model.capacity.host_resources import (
    Capabilities,
    DiskLimit,
    HostMemory,
    HostNotice,
    HostWants,
    Mode,
    ZoneCapacity,
)
from protect.toolstack.completion import Completing, completed
from protect.toolstack.libxl.boot import Boot
from protect.toolstack.libxl.capacity import blkfront, preflight
from protect.toolstack.libxl.capacity.preflight import HostFacts
from protect.toolstack.libxl.config import overhead_bytes
from protect.toolstack.libxl.sharing import Sharing
from protect.toolstack.libxl.workers import Workers, xen_faults
from xenbind import flask, memory, physinfo
from xenbind.context import Context

_DOM0 = 0


class XenHost:
    """Answers for the toolstack.  Xen's command line and xenstored's quota are read once."""

    def __init__(self, workers: Workers, boot: Boot, sharing: Sharing, capabilities: Capabilities) -> None:
        self._workers = workers
        self._boot = boot
        self._sharing = sharing
        self._capabilities = capabilities
        self._xen: dict[str, str] = {}
        self._nodes = preflight.DEFAULT_NODES

    async def open(self) -> None:
        """Read the constant values.  XenError."""
        self._xen = preflight.settings((await self._workers.ask(physinfo.physinfo)).command_line)
        self._nodes = (await asyncio.to_thread(preflight.store_quota)).nodes

    async def memory(self) -> HostMemory:
        with xen_faults("read host memory", ""):
            return await self._workers.ask(host_memory, self._sharing.most_bytes)

    async def preflight(self, wants: HostWants) -> tuple[HostNotice, ...]:
        facts = HostFacts(
            xen=self._xen,
            dom0_bytes=(await self.memory()).dom0,
            iommu=self._capabilities.iommu,
            volumes=self._boot.volumes,
            launcher=self._sharing.launcher,
        )
        return await asyncio.to_thread(preflight.check_settings, facts, wants)

    def capacity(self, disks_per_zone: int) -> ZoneCapacity:
        return preflight.maptrack_capacity(self._xen, disks_per_zone)

    def disk_limit(self, memory_bytes: int, vcpus: int) -> DiskLimit:
        return blkfront.disk_limit(memory_bytes, vcpus, self._nodes)

    async def has_seclabel(self, label: str) -> bool:
        """See ``Toolstack.has_seclabel``."""
        with xen_faults("look up label", label):
            return self._capabilities.flask and await self._workers.ask(flask.knows, label)


class AsksHost(Completing):
    """The part of the toolstack's port that ``XenHost`` answers."""

    _host: XenHost

    @completed
    async def memory(self) -> HostMemory:
        return await self._host.memory()

    def overhead_bytes(self, memory_bytes: int, vcpus: int, mode: Mode) -> int:
        return overhead_bytes(memory_bytes, vcpus)

    @completed
    async def preflight(self, wants: HostWants) -> tuple[HostNotice, ...]:
        return await self._host.preflight(wants)

    @completed
    async def has_seclabel(self, label: str) -> bool:
        return await self._host.has_seclabel(label)

    def capacity(self, disks_per_zone: int) -> ZoneCapacity:
        return self._host.capacity(disks_per_zone)

    def disk_limit(self, memory_bytes: int, vcpus: int) -> DiskLimit:
        return self._host.disk_limit(memory_bytes, vcpus)


def host_memory(context: Context, sharing: int) -> HostMemory:
    """Read the domains' memory first, and then the free memory.  ``sharing``: bytes of the file servers."""
    holders = memory.holders(context)
    free = physinfo.physinfo(context).free_bytes
    return HostMemory(
        free=free,
        domains={
            one.uuid: one.held_bytes + overhead_bytes(one.held_bytes, one.vcpus)
            for one in holders
            if one.domid != _DOM0
        },
        dom0=sum(one.held_bytes for one in holders if one.domid == _DOM0),
        sharing=sharing,
    )
