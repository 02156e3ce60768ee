"""The gRPC service protect.v1.Devices."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc.aio

from daemonkit.faults import Invalid
from daemonkit.rpc.interceptors import read_only
from daemonkit.tasks import complete
from protect.config import HostConfig
from protect.host import named_devices
from protect.model import checks
from protect.model.volume import PCI_ADDRESS, DeviceRequest
from protect.server import translate
from protect.state.registry import Registry
from protect.workloads.devices.attach import DeviceAttachment
from protect.workloads.devices.find import DeviceSearch, kind_of
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, eq=False)
class DevicesServicer(protect_pb2_grpc.DevicesServicer):
    """Each method checks the request, calls a verb, and translates the result."""

    registry: Registry
    attachment: DeviceAttachment
    search: DeviceSearch
    config: HostConfig

    @read_only
    async def ListDevices(self, request: pb.ListDevicesRequest, context: Context) -> pb.ListDevicesResponse:
        named = self.config.devices
        places = {name: device.place for name, device in named.items()}
        present = await asyncio.to_thread(named_devices.present, places)
        return pb.ListDevicesResponse(devices=self._all(present))

    def _all(self, present: frozenset[str]) -> Iterator[pb.Device]:
        """Devices of zones, then free devices."""
        named, held = self.config.devices, set()
        for zone in self.registry.zones.values():
            for device in zone.zone.devices:
                held.add(device.name)
                shown = translate.device(device, zone.id)
                shown.present = device.name in present
                shown.profiles.extend(named[device.name].profiles if device.name in named else ())
                yield shown
        for name, one in named.items():
            if name not in held:
                kind = translate.DEVICE_KINDS[kind_of(one)]
                yield pb.Device(
                    name=name,
                    kind=kind,
                    place=one.place,
                    readonly=one.readonly,
                    profiles=one.profiles,
                    present=name in present,
                )

    async def AttachDevice(self, request: pb.AttachDeviceRequest, context: Context) -> pb.Device:
        operation = "attach device"
        zone = self.registry.zone(operation, checks.identifier(operation, "zone", request.zone_id))
        await zone.agent.ready()
        [wanted] = await self.search.find(zone, [_request(operation, request)])
        return translate.device(await complete(self.attachment.acquire(zone, wanted)), zone.id)

    async def DetachDevice(
        self, request: pb.DetachDeviceRequest, context: Context
    ) -> pb.DetachDeviceResponse:
        operation = "detach device"
        zone = self.registry.zone(operation, checks.identifier(operation, "zone", request.zone_id))
        await zone.agent.ready()
        label = request.device
        if label.startswith("/"):
            label = checks.path(operation, "device", label)
        elif not PCI_ADDRESS.fullmatch(label):
            label = checks.device_name(operation, label)
        return pb.DetachDeviceResponse(
            confirmed=await self.attachment.detach(zone, label, force=request.force)
        )


def _request(operation: str, request: pb.AttachDeviceRequest) -> DeviceRequest:
    if PCI_ADDRESS.fullmatch(request.device):
        cause = "a PCI function has to have a name"
        raise Invalid(operation, request.device, cause, "name it in [host.devices] of protectd.toml")
    if request.device.startswith("/"):
        path = checks.path(operation, "device", request.device)
        return DeviceRequest(host_path=path, readonly=request.readonly)
    return DeviceRequest(name=checks.device_name(operation, request.device), readonly=request.readonly)
