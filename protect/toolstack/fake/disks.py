"""Disks of fake domains: a loop device with a node in the zone's /dev.  A PCI function is only a record.

The loop device is held open by this process until it is detached or the domain is destroyed, and
by the zone while the disk is mounted; the kernel frees a device without users.  After a kill of the daemon

* a mounted disk stays, and the next daemon holds it again (``adopt``);
* an attached but unmounted disk is gone: ``disks()`` no longer lists it, its
  node is removed, and the caller has to attach it again, like any other operation under way.

An exclusive block device also gets a loop device: otherwise our own claim would make the kernel refuse the
zone's mount.  The loop device stays until detach, because containers have unopened nodes of it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import UUID

from daemonkit.faults import Exists, Missing, Refused
from protect.host.loops import Loop, adopt_loop, attach_device, backing_file, keep_loop
from protect.model.capacity.modes import refuse_impossible_rates
from protect.model.domain.shares import DiskRates
from protect.model.errors import DomainGone, ToolstackError
from protect.model.toolstack import DiskSpec, DomainId
from protect.toolstack.completion import Completing, completed
from protect.toolstack.fake import devnodes
from protect.toolstack.fake.cgroups import Cgroups
from protect.toolstack.fake.domain import Domain, write_atomically
from protect.toolstack.fake.fake_settings import FakeSettings
from protect.toolstack.open_disk import VDEV, check_name, open_disk

log = logging.getLogger(__name__)

_FUNCTION = "attach PCI function"


@dataclass(frozen=True, slots=True)
class DiskRecord:
    """``disks/<vdev>``: ``file`` is (st_dev, st_ino) of the file behind the loop ``device``, or ()."""

    device: str
    file: tuple[int, ...]
    readonly: bool
    exclusive: bool = False


async def attach_disk(domain: Domain, disk: DiskSpec) -> None:
    """Attach a disk; a failure undoes the earlier steps."""
    if disk.vdev in domain.loops:
        raise Exists("attach disk", f"{disk.vdev} of {domain.spec.name}", "attached already")
    check_name(disk)
    loop = await (attach_device(disk.path, disk.readonly) if disk.exclusive else open_disk(disk))
    # from here on destroy and detach find the loop device
    domain.loops[disk.vdev] = loop
    try:
        await asyncio.to_thread(_publish, domain, disk, loop)
    except BaseException:
        await detach(domain, disk.vdev)
        raise


async def detach(domain: Domain, vdev: str) -> None:
    """Detach a disk; an unknown disk is no error."""
    if vdev not in domain.loops:
        return
    await asyncio.to_thread(_withdraw, domain, vdev)
    loop = domain.loops.pop(vdev)
    if loop is not None:
        loop.close()


def let_go(domain: Domain) -> None:
    """Free each disk of an ended domain when its last user closes it."""
    for loop in domain.loops.values():
        if loop is not None:
            keep_loop(loop, kept=False)


def adopt_disks(domain: Domain) -> None:
    """Hold the disks that outlived the daemon again; forget the others."""
    directory = domain.directory / "disks"
    if not directory.is_dir():
        return
    for entry in directory.iterdir():
        if not VDEV.fullmatch(entry.name):
            entry.unlink()
            continue
        record = _record(entry)
        if not record.file:
            domain.loops[entry.name] = None
        elif loop := adopt_loop(Path(record.device), (record.file[0], record.file[1])):
            domain.loops[entry.name] = loop
        else:
            _withdraw(domain, entry.name)


def hold_rates(domain: Domain, cgroups: Cgroups, rates: DiskRates) -> None:
    """Enforce the rates for present and later disks.  Refused: the kernel cannot."""
    refuse_impossible_rates("set disk rates", domain.spec.name, rates, possible=cgroups.can_throttle)
    domain.throttle = lambda device: cgroups.throttle(str(domain.spec.uuid), device, rates)
    if not rates:
        # Lift the rates of former devices too: the kernel reuses numbers of loop devices.
        cgroups.lift(str(domain.spec.uuid))
        return
    for vdev in domain.loops:
        domain.throttle(os.stat(_record(domain.directory / "disks" / vdev).device).st_rdev)


def _record(entry: Path) -> DiskRecord:
    values = json.loads(entry.read_text())
    return DiskRecord(values["device"], tuple(values["file"]), values["readonly"])


def _publish(domain: Domain, disk: DiskSpec, loop: Loop | None) -> None:
    device = loop.path if loop else disk.path
    record = DiskRecord(str(device), backing_file(loop) if loop else (), disk.readonly, disk.exclusive)
    directory = domain.directory / "disks"
    directory.mkdir(exist_ok=True)
    write_atomically(directory / disk.vdev, json.dumps(asdict(record)))
    if loop and disk.exclusive:
        keep_loop(loop, kept=True)  # from here on ``adopt`` finds the device by its record
    number = os.makedev(loop.major, loop.minor) if loop else os.stat(device).st_rdev
    domain.throttle(number)
    devnodes.make_node(domain.id, disk.vdev, number, disk.readonly)


def _withdraw(domain: Domain, vdev: str) -> None:
    """Remove the node and the record, even if the zone changed its own tree."""
    try:
        if domain.process is not None and domain.process.stat():
            devnodes.remove_node(domain.id, vdev)
    except DomainGone:
        log.debug("%s ended while %s was detached", domain.spec.name, vdev)
    except ToolstackError as error:
        log.warning("device node %s stays in %s: %s", vdev, domain.spec.name, error)
    if loop := domain.loops.get(vdev):
        keep_loop(loop, kept=False)
    (domain.directory / "disks" / vdev).unlink(missing_ok=True)


def attach_function(settings: FakeSettings, domain: Domain, address: str, others: Iterable[Domain]) -> None:
    """Attach a function; refuses the same cases as Xen."""
    if address in functions(domain):
        raise Exists(_FUNCTION, f"{address} of {domain.spec.name}", "attached already")
    if address not in settings.pci:
        raise Missing(_FUNCTION, address, "there is no such function", "fake.pci says which there are")
    if not settings.iommu:
        raise Refused(_FUNCTION, address, "this host has no IOMMU", "fake.iommu says that it has one")
    if not domain.spec.passthrough:
        cause = "its zone was made without an IOMMU's page tables"
        raise Refused(
            _FUNCTION, address, cause, "name the function in [host.devices] before the zone is made"
        )
    for other in others:
        if address in functions(other):
            raise Refused(_FUNCTION, address, f"{other.spec.name} has it")
    directory = domain.directory / "pci"
    directory.mkdir(exist_ok=True)
    (directory / address).touch()


def detach_function(domain: Domain, address: str) -> None:
    """Forget the function; an unknown function is no error."""
    (domain.directory / "pci" / address).unlink(missing_ok=True)


def functions(domain: Domain) -> list[str]:
    """The addresses of the domain's functions."""
    directory = domain.directory / "pci"
    return sorted(entry.name for entry in directory.iterdir()) if directory.is_dir() else []


class FakePciVerbs(Completing):
    """The port's verbs for PCI functions."""

    _settings: FakeSettings
    _domains: dict[UUID, Domain]

    def _living(self, operation: str, domain: DomainId) -> Domain:
        raise NotImplementedError

    def _by_id(self, domain: DomainId) -> Domain | None:
        raise NotImplementedError

    def _changing(self, domain: Domain, at: str, operation: str) -> AbstractAsyncContextManager[None]:
        raise NotImplementedError

    @completed
    async def attach_pci(self, domain: DomainId, address: str) -> None:
        found = self._living("attach PCI function", domain)
        async with self._changing(found, "attach_pci", f"attach PCI function {address}"):
            attach_function(self._settings, found, address, self._domains.values())

    @completed
    async def detach_pci(self, domain: DomainId, address: str) -> None:
        found = self._by_id(domain)
        if found is not None:
            async with self._changing(found, "detach_pci", f"detach PCI function {address}"):
                detach_function(found, address)
