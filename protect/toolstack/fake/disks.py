"""Disks of fake domains: a loop device, and its node in the zone's /dev.

The loop device is held open by this process until it is detached or the domain is destroyed, and
by the zone while it has it mounted; it frees itself when neither does.  So when the daemon is killed

* a disk that the zone has mounted stays, and is held again by the next daemon (``adopt``);
* a disk that was attached but not yet mounted is gone: ``disks()`` does not name it any more, its
  node is removed, and the attach has to be done again, as must everything that was under way.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from daemonkit.faults import Exists
from protect.host.loops import Loop, adopt_loop, backing_file
from protect.model.domain.shares import DiskRates
from protect.model.errors import DomainGone, ToolstackError
from protect.model.room.modes import refuse_impossible_rates
from protect.model.toolstack import DiskSpec
from protect.toolstack.disks import VDEV, open_disk
from protect.toolstack.fake import devnodes
from protect.toolstack.fake.cgroups import Cgroups
from protect.toolstack.fake.domain import Domain, write_atomically

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DiskRecord:
    """``disks/<vdev>``: ``file`` is (st_dev, st_ino) of what is behind the loop ``device``, or ()."""

    device: str
    file: tuple[int, ...]
    readonly: bool


async def attach(domain: Domain, disk: DiskSpec) -> None:
    """Attach a disk; every step is undone if a later one fails."""
    if disk.vdev in domain.loops:
        raise Exists("attach disk", f"{disk.vdev} of {domain.spec.name}", "attached already")
    loop = await open_disk(disk)
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
    record = DiskRecord(str(device), backing_file(loop) if loop else (), disk.readonly)
    directory = domain.directory / "disks"
    directory.mkdir(exist_ok=True)
    write_atomically(directory / disk.vdev, json.dumps(asdict(record)))
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
    (domain.directory / "disks" / vdev).unlink(missing_ok=True)
