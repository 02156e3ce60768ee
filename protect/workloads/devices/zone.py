"""Devices of a zone from its launch on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from daemonkit.checkpoints import checkpoint
from protect.config import NamedDevice
from protect.model.toolstack import Mode, Toolstack
from protect.model.volume import DeviceKind, DeviceRequest
from protect.model.zone import ZoneSpec
from protect.state.runtime import ZoneRuntime
from protect.workloads.devices.attach import DeviceAttachment
from protect.workloads.devices.find import DeviceSearch, kind_of


@dataclass(frozen=True, slots=True)
class ZoneDevices:
    """Gives zones the devices of their specs."""

    toolstack: Toolstack
    device_search: DeviceSearch
    attachment: DeviceAttachment
    named_devices: Mapping[str, NamedDevice]

    def may_pass_functions(self, spec: ZoneSpec) -> bool:
        """Whether a zone may ever get PCI functions.  The hypervisor needs to know at the creation."""
        named = self.named_devices.values()
        return (
            spec.mode is Mode.PV
            and self.toolstack.capabilities().iommu
            and any(
                kind_of(one) is DeviceKind.PCI and (not one.profiles or spec.profile in one.profiles)
                for one in named
            )
        )

    async def give_devices(self, zone: ZoneRuntime) -> None:
        """Attach the devices of the zone's spec.  Faults of ``find`` and ``acquire``."""
        names = zone.zone.spec.device_names
        for wanted in await self.device_search.find(zone, [DeviceRequest(name=name) for name in names]):
            await self.attachment.acquire(zone, wanted)
            checkpoint("device-give.of-zone")
