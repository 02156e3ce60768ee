"""``protect device``: shows the host's devices with their zones, attaches and detaches them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from daemonkit.rpc.channels import channel
from protectctl import daemons, find, selector, show
from protectctl.command_errors import Command, CommandFailed
from protectctl.output import structured
from protectctl.selector import add_selector
from protectctl.usage.verbs import ZONE, add_protectd_verb, verbs_of
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc

_TIMEOUT_SECONDS = 120.0
"""Seconds.  A guest first has its own time to let the device go."""
_DEVICE = "its name in [host.devices] of protectd.toml, or the path of a block device"


def add_arguments(noun: argparse.ArgumentParser) -> None:
    verbs = verbs_of(noun)
    text = "devices that the configuration names, and those that zones have"
    add_selector(add_protectd_verb(verbs, "device list", text), selector.DEVICE)
    text = "give a running zone a device until it ends, or the device is detached"
    attaching = add_protectd_verb(verbs, "device attach", text)
    detaching = add_protectd_verb(verbs, "device detach", "take a device from a zone")
    for one in (attaching, detaching):
        one.add_argument("id", metavar="ZONE", help=ZONE)
        one.add_argument("device", metavar="DEVICE", help=_DEVICE)
    attaching.add_argument("--readonly", action="store_true", help="a block device that is only read")
    detaching.add_argument("--force", action="store_true", help="also while something in the zone uses it")


async def device_list(options: argparse.Namespace) -> None:
    async with channel(options.socket) as link:
        answer = await protect_pb2_grpc.DevicesStub(link).ListDevices(
            pb.ListDevicesRequest(), timeout=_TIMEOUT_SECONDS
        )
    chosen = options.selector.select(selector.DEVICE, answer.devices)
    answer = pb.ListDevicesResponse(devices=chosen)
    if structured(options.output, answer, names=(one.name or one.place for one in answer.devices)):
        return
    short = find.short([one.zone_id for one in answer.devices])
    rows = [
        (one.name, one.place, _kind(one), _state(one), short.get(one.zone_id, ""), one.disk,
         ", ".join(one.profiles) or "all")
        for one in answer.devices
    ]  # fmt: skip
    show.table(("NAME", "PLACE", "KIND", "STATE", "ZONE", "DISK", "PROFILES"), rows)


async def device_attach(options: argparse.Namespace) -> None:
    async with channel(options.socket) as link:
        zone_id = await daemons.zone_id(protect_pb2_grpc.ZonesStub(link), options.id)
        request = pb.AttachDeviceRequest(zone_id=zone_id, device=options.device, readonly=options.readonly)
        given = await protect_pb2_grpc.DevicesStub(link).AttachDevice(request, timeout=_TIMEOUT_SECONDS)
    if not structured(options.output, given, names=[given.name or given.place]) and given.disk:
        show.note(f"the zone has it as /dev/{given.disk}")


async def device_detach(options: argparse.Namespace) -> None:
    """Exit status 1: the zone has not confirmed the detach."""
    async with channel(options.socket) as link:
        zone_id = await daemons.zone_id(protect_pb2_grpc.ZonesStub(link), options.id)
        request = pb.DetachDeviceRequest(zone_id=zone_id, device=options.device, force=options.force)
        answer = await protect_pb2_grpc.DevicesStub(link).DetachDevice(request, timeout=_TIMEOUT_SECONDS)
    if not answer.confirmed:
        raise CommandFailed("the host has it back, but the zone has not confirmed that it is gone")


def _kind(one: pb.Device) -> str:
    kind = pb.DeviceKind.Name(one.kind).removeprefix("DEVICE_KIND_").lower()
    return f"{kind}, read-only" if one.readonly else kind


def _state(one: pb.Device) -> str:
    if one.zone_id:
        return "attached" if one.attached else "changing"
    return "free" if one.present else "absent"


COMMANDS: Mapping[str, Command] = {
    "device list": device_list,
    "device attach": device_attach,
    "device detach": device_detach,
}
