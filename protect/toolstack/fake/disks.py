"""Disks of fake domains: a loop device, and its node in the zone's /dev; of PCI functions a record alone.

The loop device is held open by this process until it is detached or the domain is destroyed, and
by the zone while it has it mounted; it frees itself when neither does.  So when the daemon is killed

* a disk that the zone has mounted stays, and is held again by the next daemon (``adopt``);
* a disk that was attached but not yet mounted is gone: ``disks()`` does not name it any more, its
  node is removed, and the attach has to be done again, as must everything that was under way.

An exclusive disk is a loop device on the host's, too: what the zone mounts would else be refused because of
our own claim.  It stays until it is detached, since containers have nodes of it that are not open.
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
from protect.host.loops import Loop, adopt_loop, attach_device, backing_file, keep
from protect.model.domain.shares import DiskRates
from protect.model.errors import DomainGone, ToolstackError
from protect.model.room.modes import refuse_impossible_rates
from protect.model.toolstack import DiskSpec, DomainId
from protect.toolstack.completion import Completing, completed
from protect.toolstack.disks import VDEV, check_name, open_disk
from protect.toolstack.fake import devnodes
from protect.toolstack.fake.cgroups import Cgroups
from protect.toolstack.fake.domain import Domain, write_atomically
from protect.toolstack.fake.settings import FakeSettings

log = logging.getLogger(__name__)

_FUNCTION = "attach PCI function"


@dataclass(frozen=True, slots=True)
class DiskRecord:
    """``disks/<vdev>``: ``file`` is (st_dev, st_ino) of what is behind the loop ``device``, or ()."""

    device: str
    file: tuple[int, ...]
    readonly: bool
    exclusive: bool = False


async def attach(domain: Domain, disk: DiskSpec) -> None:
    """Attach a disk; every step is undone if a later one fails."""
    if disk.vdev in domain.loops:
        raise Exists("attach disk", f"{disk.vdev} of {domain.spec.name}", "attached already")
    check_name(disk)
    loop = await (attach_device(disk.path, disk.readonly) if disk.exclusive else open_disk(disk))
    # from here on destroy and detach find it
    domain.loops[disk.vdev] = loop
    try:
        await asyncio.to_thread(_publish, domain, disk, loop)
    except BaseException:
        await detach(domain, disk.vdev)
        raise


async def detach(domain: Domain, vdev: str) -> None:
    """Detach a disk; succeeds if there is no such disk."""
    if vdev not in domain.loops:
        return
    await asyncio.to_thread(_withdraw, domain, vdev)
    loop = domain.loops.pop(vdev)
    if loop is not None:
        loop.close()


def let_go(domain: Domain) -> None:
    """Let the disks of a domain that has ended go with the last who has them open."""
    for loop in domain.loops.values():
        if loop is not None:
            keep(loop, kept=False)


def adopt(domain: Domain) -> None:
    """Hold the disks that outlived the daemon again, and forget the others."""
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
    """Hold the rates for the disks that it has, and will have.  Refused: the kernel cannot."""
    refuse_impossible_rates("set disk rates", domain.spec.name, rates, possible=cgroups.can_throttle)
    domain.throttle = lambda device: cgroups.throttle(str(domain.spec.uuid), device, rates)
    if not rates:
        # Also of devices that it has no more: the numbers of loop devices are used again.
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
        keep(loop, kept=True)  # from here on the record finds it
    number = os.makedev(loop.major, loop.minor) if loop else os.stat(device).st_rdev
    domain.throttle(number)
    devnodes.make_node(domain.id, disk.vdev, number, disk.readonly)


def _withdraw(domain: Domain, vdev: str) -> None:
    """Remove the node and the record, whatever the zone did to its own tree."""
    try:
        if domain.process is not None and domain.process.stat():
            devnodes.remove_node(domain.id, vdev)
    except DomainGone:
        log.debug("%s ended while %s was detached", domain.spec.name, vdev)
    except ToolstackError as error:
        log.warning("device node %s stays in %s: %s", vdev, domain.spec.name, error)
    if loop := domain.loops.get(vdev):
        keep(loop, kept=False)
    (domain.directory / "disks" / vdev).unlink(missing_ok=True)


def attach_function(settings: FakeSettings, domain: Domain, address: str, others: Iterable[Domain]) -> None:
    """Refuse what Xen would refuse."""
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
    """Forget it; succeeds if there is none."""
    (domain.directory / "pci" / address).unlink(missing_ok=True)


def functions(domain: Domain) -> list[str]:
    """The addresses of those that it has."""
    directory = domain.directory / "pci"
    return sorted(entry.name for entry in directory.iterdir()) if directory.is_dir() else []


class FakePciVerbs(Completing):
    """The verbs of the port that have to do with PCI functions."""

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
