"""Devices of a zone from its launch on."""

from __future__ import annotations

from daemonkit.checkpoints import checkpoint
from protect.model.toolstack import Mode
from protect.model.volume import DeviceKind, DeviceRequest
from protect.model.zone import ZoneSpec
from protect.state.manager import ZoneManager
from protect.state.runtime import ZoneRuntime
from protect.workloads.devices.attach import acquire
from protect.workloads.devices.find import find, kind_of


def may_pass_functions(manager: ZoneManager, spec: ZoneSpec) -> bool:
    """Whether a zone may ever get PCI functions.  The hypervisor needs to know at the creation."""
    named = manager.config.host.devices.values()
    return (
        spec.mode is Mode.PV
        and manager.toolstack.capabilities().iommu
        and any(
            kind_of(one) is DeviceKind.PCI and (not one.profiles or spec.profile in one.profiles)
            for one in named
        )
    )


async def give_devices(manager: ZoneManager, zone: ZoneRuntime) -> None:
    """Attach the devices of the zone's spec.  Faults of ``find`` and ``acquire``."""
    names = zone.zone.spec.device_names
    for wanted in await find(manager, zone, [DeviceRequest(name=name) for name in names]):
        await acquire(manager, zone, wanted)
        checkpoint("device-give.of-zone")
