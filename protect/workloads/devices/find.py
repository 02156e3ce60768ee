"""Finds requested devices, by names of the configuration or by paths, and checks the zone's permission."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from daemonkit.faults import Denied, Missing
from protect.config import NamedDevice
from protect.host.devices import is_pci
from protect.model.volume import DeviceKind, DeviceRequest, ZoneDevice
from protect.model.zone import ZoneSpec
from protect.state.manager import ZoneManager
from protect.state.runtime import ZoneRuntime

_OPERATION = "find device"


async def find(
    manager: ZoneManager, zone: ZoneRuntime, requests: Sequence[DeviceRequest]
) -> list[ZoneDevice]:
    """Find each requested device, without attaching.  No lasting effect.

    Missing, Invalid: no device, or of a kind not for zones.  Denied: the zone's profile may not have the
    device.  TooLate: the host does not answer.
    """
    wanted = [_wanted(manager, zone.zone.spec, request) for request in requests]
    paths = [device.place for device in wanted if device.kind is DeviceKind.BLOCK]
    found = iter(await manager.devices.find(zone.id, paths, manager.config.timeouts.call))
    return [
        replace(device, place=str(at.path), number=at.number)
        if device.kind is DeviceKind.BLOCK and (at := next(found))
        else device
        for device in wanted
    ]


def check(manager: ZoneManager, spec: ZoneSpec) -> None:
    """Check the devices of a zone before its launch.  Missing, Denied."""
    for name in spec.device_names:
        _allowed(manager, spec, name)


def _wanted(manager: ZoneManager, spec: ZoneSpec, request: DeviceRequest) -> ZoneDevice:
    if not request.name:
        return ZoneDevice(DeviceKind.BLOCK, request.host_path, readonly=request.readonly)
    named = _allowed(manager, spec, request.name)
    return ZoneDevice(kind_of(named), named.place, request.name, readonly=named.readonly or request.readonly)


def _allowed(manager: ZoneManager, spec: ZoneSpec, name: str) -> NamedDevice:
    named = configured(manager, name)
    if named.profiles and spec.profile not in named.profiles:
        cause = f"zone {spec.id} has the profile {spec.profile}, and it is for others"
        hint = f"host.devices.{name}.profiles in protectd.toml says for which"
        raise Denied(_OPERATION, name, cause, hint)
    return named


def configured(manager: ZoneManager, name: str) -> NamedDevice:
    """The device with this name.  Missing: not in the configuration."""
    try:
        return manager.config.host.devices[name]
    except KeyError:
        known = ", ".join(sorted(manager.config.host.devices)) or "none"
        hint = f"[host.devices] of protectd.toml has: {known}"
        raise Missing(_OPERATION, name, "no device has this name", hint) from None


def kind_of(named: NamedDevice) -> DeviceKind:
    """Whether a place is a PCI address or a path."""
    return DeviceKind.PCI if is_pci(named.place) else DeviceKind.BLOCK
