"""Attaches a device to a zone while workloads use the device, and detaches the device afterwards.

A zone's record names each device from before the attach until after the detach: ``settle`` detaches devices
that a killed daemon left half attached.  A device is detached once the zone's kernel has released the device,
or by force; then the host has the device again.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from dataclasses import replace

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Exhausted, Fault, Refused
from daemonkit.logs import fields
from daemonkit.tasks import complete
from protect.model.toolstack import DiskSpec
from protect.model.volume import DeviceKind, ZoneDevice
from protect.model.zone import ZoneState
from protect.state import disk_names
from protect.state.manager import ZoneManager
from protect.state.runtime import ZoneRuntime
from protect.workloads.disks import limit

log = logging.getLogger(__name__)

_OPERATION = "attach device"


async def acquire(manager: ZoneManager, zone: ZoneRuntime, wanted: ZoneDevice, user: str = "") -> ZoneDevice:
    """Attach a device for ``user``, a workload; "": until the zone's end or an explicit detach.

    Refused: the device has another user, or does not fit the zone.  Exhausted: the zone has too many disks.
    """
    async with zone.attaching:
        zone.end.check("use", f"zone {zone.id}")
        known = _known(zone, wanted)
        if known is not None and not known.ready:
            await _detach(manager, zone, known)  # left by an earlier failure
            known = None
        if known is None:
            return await _attach(manager, zone, wanted, user)
        if known.readonly and not wanted.readonly:
            cause = f"zone {zone.id} has it read-only, and it is now to be written"
            raise Refused(_OPERATION, wanted.label, cause)
        users = (*(one for one in known.users if one != user), *([user] if user else []))
        return _put(manager, zone, replace(known, users=users, kept=known.kept or not user))


async def release(manager: ZoneManager, zone: ZoneRuntime, user: str) -> None:
    """Detach devices without another user than this workload."""
    async with zone.attaching:
        for device in zone.zone.devices:
            if user not in device.users:
                continue
            users = tuple(one for one in device.users if one != user)
            if zone.running and not (device.ready and (users or device.kept)):
                await _detach(manager, zone, device)
            else:
                _put(manager, zone, replace(device, users=users))


async def detach(manager: ZoneManager, zone: ZoneRuntime, label: str, *, force: bool) -> bool:
    """Detach a device by its name or place; returns whether the zone has confirmed the detach.

    Refused, unless ``force``: a running workload has the device, or the zone has the device mounted.  An
    unknown device succeeds.
    """
    async with zone.attaching:
        found = [one for one in zone.zone.devices if label in (one.name, one.place)]
        if not found:
            return True
        if not force and found[0].ready:
            await _refuse_in_use(zone, found[0])
        return await complete(_detach(manager, zone, found[0]))


async def settle(manager: ZoneManager, zone: ZoneRuntime) -> None:
    """Detach unused, half attached and half detached devices; failures are logged."""
    async with zone.attaching:
        for device in zone.zone.devices:
            users = tuple(one for one in device.users if one in zone.workloads)
            try:
                if not device.ready or not (users or device.kept):
                    await _detach(manager, zone, device)
                elif users != device.users:
                    _put(manager, zone, replace(device, users=users))
            except Fault as fault:
                log.error("device is not settled: %s", fault, extra=fields(zone=zone.id, device=device.label))


async def _attach(manager: ZoneManager, zone: ZoneRuntime, wanted: ZoneDevice, user: str) -> ZoneDevice:
    _refuse_taken(manager, zone, wanted)
    vdev = _vdev(manager, zone) if wanted.kind is DeviceKind.BLOCK else ""
    begun = replace(wanted, vdev=vdev, users=(user,) if user else (), kept=not user, ready=False)
    _put(manager, zone, begun)
    checkpoint("device-attach.recorded")
    async with AsyncExitStack() as undo:
        undo.push_async_callback(_undo, manager, zone, begun)
        await _plug(manager, zone, begun)
        checkpoint("device-attach.attached")
        if vdev:
            await zone.client.find_device(vdev)
        checkpoint("device-attach.seen")
        ready = _put(manager, zone, replace(begun, ready=True))
        undo.pop_all()
    checkpoint("device-attach.done")
    log.info("device attached", extra=fields(zone=zone.id, device=ready.label, disk=vdev))
    return ready


def _refuse_taken(manager: ZoneManager, zone: ZoneRuntime, wanted: ZoneDevice) -> None:
    for reservation in manager.reservations.values():
        if wanted.name in reservation.devices and reservation.id not in zone.zone.spec.reservations:
            raise Refused(_OPERATION, wanted.label, f"reservation {reservation.id} of other pods has it")
    for other in manager.zones.values():
        if other is zone or other.zone.state is ZoneState.DEAD:
            continue
        for device in other.zone.devices:
            if device.same(wanted) and not (device.readonly and wanted.readonly):
                shared = ", and not both only read it" if device.readonly or wanted.readonly else ""
                raise Refused(_OPERATION, wanted.label, f"zone {other.id} has it{shared}")


def _vdev(manager: ZoneManager, zone: ZoneRuntime) -> str:
    taken, most = disk_names.taken(zone), limit(manager, zone)
    if len(taken) >= most.disks:
        cause = f"zone {zone.id} has {len(taken)} disks, as many as it may: {most.bound}"
        raise Exhausted(_OPERATION, zone.id, cause, "a larger zone can have more")
    return next(disk_names.free(taken))


async def _plug(manager: ZoneManager, zone: ZoneRuntime, device: ZoneDevice) -> None:
    if device.kind is DeviceKind.PCI:
        await manager.toolstack.attach_pci(zone.zone.domain_id, device.place)
        return
    disk = DiskSpec(device.vdev, device.path, readonly=device.readonly, exclusive=True)
    await manager.toolstack.attach_disk(zone.zone.domain_id, disk)


async def _undo(manager: ZoneManager, zone: ZoneRuntime, device: ZoneDevice) -> None:
    """Undo an attach.  After a failure, the next request for the device or the zone's end detaches it."""
    try:
        await _detach(manager, zone, device)
    except Fault as fault:
        log.error("attach device %s is not wholly undone: %s", device.label, fault)


async def _refuse_in_use(zone: ZoneRuntime, device: ZoneDevice) -> None:
    using = [one for one in device.users if one in zone.workloads and not zone.workloads[one].ended.is_set()]
    if using:
        cause = f"workload {', '.join(using)} of zone {zone.id} uses it"
        raise Refused("detach device", device.label, cause, "stop it first, or force the device off")
    if device.vdev and (await zone.agent.find_device(device.vdev)).in_use:
        cause = f"zone {zone.id} has it mounted, or somebody there has it to himself"
        raise Refused("detach device", device.label, cause, "unmount it first, or force the device off")


async def _detach(manager: ZoneManager, zone: ZoneRuntime, device: ZoneDevice) -> bool:
    """Detach in repeatable steps; returns whether the zone has confirmed the detach."""
    _put(manager, zone, replace(device, ready=False))
    checkpoint("device-detach.recorded")
    if device.kind is DeviceKind.PCI:
        await manager.toolstack.detach_pci(zone.zone.domain_id, device.place)
    else:
        await manager.toolstack.detach_disk(zone.zone.domain_id, device.vdev)
    checkpoint("device-detach.detached")
    confirmed = await _is_gone(zone, device)
    checkpoint("device-detach.confirmed")
    rest = tuple(one for one in zone.zone.devices if not one.same(device))
    manager.update_zone(zone, replace(zone.zone, devices=rest))
    checkpoint("device-detach.done")
    log.info("device detached", extra=fields(zone=zone.id, device=device.label, confirmed=confirmed))
    return confirmed


async def _is_gone(zone: ZoneRuntime, device: ZoneDevice) -> bool:
    """Whether the zone confirms the detach.  The host has the device back in any case."""
    if not device.vdev or zone.end:
        return True
    try:
        await zone.client.find_device(device.vdev, gone=True)
    except Fault as fault:
        log.warning("zone does not confirm: %s", fault, extra=fields(zone=zone.id, device=device.label))
        return False
    return True


def _known(zone: ZoneRuntime, wanted: ZoneDevice) -> ZoneDevice | None:
    return next((one for one in zone.zone.devices if one.same(wanted)), None)


def _put(manager: ZoneManager, zone: ZoneRuntime, device: ZoneDevice) -> ZoneDevice:
    others = tuple(one for one in zone.zone.devices if not one.same(device))
    manager.update_zone(zone, replace(zone.zone, devices=(*others, device)))
    return device
