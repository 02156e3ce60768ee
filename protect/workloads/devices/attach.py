"""Attaches a device to a zone while workloads use the device, and detaches the device afterwards.

A zone's record names each device from before the attach until after the detach: ``settle`` detaches devices
that a killed daemon left half attached.  A device is detached once the zone's kernel has released the device,
or by force; then the host has the device again.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Exhausted, Fault, Refused
from daemonkit.logs import fields
from daemonkit.tasks import complete
from protect.config import ZoneLimits
from protect.model.toolstack import DiskSpec, Toolstack
from protect.model.volume import DeviceKind, ZoneDevice
from protect.model.zone import ZoneState
from protect.state import disk_names
from protect.state.registry import Registry
from protect.state.runtime import ZoneRuntime
from protect.workloads.disks import limit

log = logging.getLogger(__name__)

_OPERATION = "attach device"


@dataclass(frozen=True, slots=True)
class DeviceAttachment:
    """Attaches and detaches devices, and records both in the zone."""

    registry: Registry
    toolstack: Toolstack
    limits: ZoneLimits

    async def acquire(self, zone: ZoneRuntime, wanted: ZoneDevice, user: str = "") -> ZoneDevice:
        """Attach a device for ``user``, a workload; "": until the zone's end or an explicit detach.

        Refused: the device has another user, or does not fit the zone.  Exhausted: too many disks.
        """
        async with zone.attaching:
            zone.end.check("use", f"zone {zone.id}")
            known = _known(zone, wanted)
            if known is not None and not known.ready:
                await self._detach(zone, known)  # left by an earlier failure
                known = None
            if known is None:
                return await self._attach(zone, wanted, user)
            if known.readonly and not wanted.readonly:
                cause = f"zone {zone.id} has it read-only, and it is now to be written"
                raise Refused(_OPERATION, wanted.label, cause)
            users = (*(one for one in known.users if one != user), *([user] if user else []))
            return self._put(zone, replace(known, users=users, kept=known.kept or not user))

    async def release(self, zone: ZoneRuntime, user: str) -> None:
        """Detach devices without another user than this workload."""
        async with zone.attaching:
            for device in zone.zone.devices:
                if user not in device.users:
                    continue
                users = tuple(one for one in device.users if one != user)
                if zone.running and not (device.ready and (users or device.kept)):
                    await self._detach(zone, device)
                else:
                    self._put(zone, replace(device, users=users))

    async def detach(self, zone: ZoneRuntime, label: str, *, force: bool) -> bool:
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
            return await complete(self._detach(zone, found[0]))

    async def settle(self, zone: ZoneRuntime) -> None:
        """Detach unused, half attached and half detached devices; failures are logged."""
        async with zone.attaching:
            for device in zone.zone.devices:
                users = tuple(one for one in device.users if one in zone.workloads)
                try:
                    if not device.ready or not (users or device.kept):
                        await self._detach(zone, device)
                    elif users != device.users:
                        self._put(zone, replace(device, users=users))
                except Fault as fault:
                    log.error(
                        "device is not settled: %s", fault, extra=fields(zone=zone.id, device=device.label)
                    )

    async def _attach(self, zone: ZoneRuntime, wanted: ZoneDevice, user: str) -> ZoneDevice:
        self._refuse_taken(zone, wanted)
        vdev = self._vdev(zone) if wanted.kind is DeviceKind.BLOCK else ""
        begun = replace(wanted, vdev=vdev, users=(user,) if user else (), kept=not user, ready=False)
        self._put(zone, begun)
        checkpoint("device-attach.recorded")
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self._undo, zone, begun)
            await self._plug(zone, begun)
            checkpoint("device-attach.attached")
            if vdev:
                await zone.client.find_device(vdev)
            checkpoint("device-attach.seen")
            ready = self._put(zone, replace(begun, ready=True))
            undo.pop_all()
        checkpoint("device-attach.done")
        log.info("device attached", extra=fields(zone=zone.id, device=ready.label, disk=vdev))
        return ready

    def _refuse_taken(self, zone: ZoneRuntime, wanted: ZoneDevice) -> None:
        for reservation in self.registry.reservations.values():
            if wanted.name in reservation.devices and reservation.id not in zone.zone.spec.reservations:
                raise Refused(_OPERATION, wanted.label, f"reservation {reservation.id} of other pods has it")
        for other in self.registry.zones.values():
            if other is zone or other.zone.state is ZoneState.DEAD:
                continue
            for device in other.zone.devices:
                if device.same(wanted) and not (device.readonly and wanted.readonly):
                    shared = ", and not both only read it" if device.readonly or wanted.readonly else ""
                    raise Refused(_OPERATION, wanted.label, f"zone {other.id} has it{shared}")

    def _vdev(self, zone: ZoneRuntime) -> str:
        taken, most = disk_names.taken(zone), limit(self.toolstack, self.limits, zone)
        if len(taken) >= most.disks:
            cause = f"zone {zone.id} has {len(taken)} disks, as many as it may: {most.bound}"
            raise Exhausted(_OPERATION, zone.id, cause, "a larger zone can have more")
        return next(disk_names.free(taken))

    async def _plug(self, zone: ZoneRuntime, device: ZoneDevice) -> None:
        if device.kind is DeviceKind.PCI:
            await self.toolstack.attach_pci(zone.zone.domain_id, device.place)
            return
        disk = DiskSpec(device.vdev, device.path, readonly=device.readonly, exclusive=True)
        await self.toolstack.attach_disk(zone.zone.domain_id, disk)

    async def _undo(self, zone: ZoneRuntime, device: ZoneDevice) -> None:
        """Undo an attach.  After a failure, the next request for the device or the zone's end detaches it."""
        try:
            await self._detach(zone, device)
        except Fault as fault:
            log.error("attach device %s is not wholly undone: %s", device.label, fault)

    async def _detach(self, zone: ZoneRuntime, device: ZoneDevice) -> bool:
        """Detach in repeatable steps; returns whether the zone has confirmed the detach."""
        self._put(zone, replace(device, ready=False))
        checkpoint("device-detach.recorded")
        if device.kind is DeviceKind.PCI:
            await self.toolstack.detach_pci(zone.zone.domain_id, device.place)
        else:
            await self.toolstack.detach_disk(zone.zone.domain_id, device.vdev)
        checkpoint("device-detach.detached")
        confirmed = await _is_gone(zone, device)
        checkpoint("device-detach.confirmed")
        rest = tuple(one for one in zone.zone.devices if not one.same(device))
        self.registry.update_zone(zone, replace(zone.zone, devices=rest))
        checkpoint("device-detach.done")
        log.info("device detached", extra=fields(zone=zone.id, device=device.label, confirmed=confirmed))
        return confirmed

    def _put(self, zone: ZoneRuntime, device: ZoneDevice) -> ZoneDevice:
        others = tuple(one for one in zone.zone.devices if not one.same(device))
        self.registry.update_zone(zone, replace(zone.zone, devices=(*others, device)))
        return device


async def _refuse_in_use(zone: ZoneRuntime, device: ZoneDevice) -> None:
    using = [one for one in device.users if one in zone.workloads and not zone.workloads[one].ended.is_set()]
    if using:
        cause = f"workload {', '.join(using)} of zone {zone.id} uses it"
        raise Refused("detach device", device.label, cause, "stop it first, or force the device off")
    if device.vdev and (await zone.agent.find_device(device.vdev)).in_use:
        cause = f"zone {zone.id} has it mounted, or somebody there has it to himself"
        raise Refused("detach device", device.label, cause, "unmount it first, or force the device off")


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
