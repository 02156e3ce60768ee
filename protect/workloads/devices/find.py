"""Finds requested devices, by names of the configuration or by paths, and checks the zone's permission."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from daemonkit.faults import Denied, Missing
from protect.config import NamedDevice, Timeouts
from protect.host.named_devices import is_pci
from protect.model.volume import DeviceKind, DeviceRequest, HostDevices, ZoneDevice
from protect.model.zone import ZoneSpec
from protect.state.runtime import ZoneRuntime

_OPERATION = "find device"


@dataclass(frozen=True, slots=True)
class DeviceSearch:
    """Finds devices on the host, by name or path."""

    host_devices: HostDevices
    named_devices: Mapping[str, NamedDevice]
    timeouts: Timeouts

    async def find(self, zone: ZoneRuntime, requests: Sequence[DeviceRequest]) -> list[ZoneDevice]:
        """Find each requested device, without attaching.  No lasting effect.

        Missing, Invalid: no device, or of a kind not for zones.  Denied: the zone's profile may not have the
        device.  TooLate: the host does not answer.
        """
        wanted = [_wanted(self.named_devices, zone.zone.spec, request) for request in requests]
        paths = [device.place for device in wanted if device.kind is DeviceKind.BLOCK]
        found = iter(await self.host_devices.find(zone.id, paths, self.timeouts.call))
        return [
            replace(device, place=str(at.path), number=at.number)
            if device.kind is DeviceKind.BLOCK and (at := next(found))
            else device
            for device in wanted
        ]


def check_devices(named_devices: Mapping[str, NamedDevice], spec: ZoneSpec) -> None:
    """Check the devices of a zone before its launch.  Missing, Denied."""
    for name in spec.device_names:
        _allowed(named_devices, spec, name)


def _wanted(named_devices: Mapping[str, NamedDevice], spec: ZoneSpec, request: DeviceRequest) -> ZoneDevice:
    if not request.name:
        return ZoneDevice(DeviceKind.BLOCK, request.host_path, readonly=request.readonly)
    named = _allowed(named_devices, spec, request.name)
    return ZoneDevice(kind_of(named), named.place, request.name, readonly=named.readonly or request.readonly)


def _allowed(named_devices: Mapping[str, NamedDevice], spec: ZoneSpec, name: str) -> NamedDevice:
    named = configured(named_devices, name)
    if named.profiles and spec.profile not in named.profiles:
        cause = f"zone {spec.id} has the profile {spec.profile}, and it is for others"
        hint = f"host.devices.{name}.profiles in protectd.toml says for which"
        raise Denied(_OPERATION, name, cause, hint)
    return named


def configured(named_devices: Mapping[str, NamedDevice], name: str) -> NamedDevice:
    """The device with this name.  Missing: not in the configuration."""
    try:
        return named_devices[name]
    except KeyError:
        known = ", ".join(sorted(named_devices)) or "none"
        hint = f"[host.devices] of protectd.toml has: {known}"
        raise Missing(_OPERATION, name, "no device has this name", hint) from None


def kind_of(named: NamedDevice) -> DeviceKind:
    """Whether a place is a PCI address or a path."""
    return DeviceKind.PCI if is_pci(named.place) else DeviceKind.BLOCK
