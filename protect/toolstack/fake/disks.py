"""Disks of fake domains: a loop device, and its node in the zone's /dev.

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
from dataclasses import asdict, dataclass
from pathlib import Path

from daemonkit.faults import Exists
from protect.host.loops import Loop, adopt_loop, attach_device, backing_file, keep
from protect.model.errors import DomainGone, ToolstackError
from protect.model.toolstack import DiskSpec
from protect.toolstack.disks import VDEV, check_name, open_disk
from protect.toolstack.fake import devnodes
from protect.toolstack.fake.domain import Domain, write_atomically

log = logging.getLogger(__name__)


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
        values = json.loads(entry.read_text())
        record = DiskRecord(values["device"], tuple(values["file"]), values["readonly"])
        if not record.file:
            domain.loops[entry.name] = None
        elif loop := adopt_loop(Path(record.device), (record.file[0], record.file[1])):
            domain.loops[entry.name] = loop
        else:
            _withdraw(domain, entry.name)


def _publish(domain: Domain, disk: DiskSpec, loop: Loop | None) -> None:
    device = loop.path if loop else disk.path
    record = DiskRecord(str(device), backing_file(loop) if loop else (), disk.readonly, disk.exclusive)
    directory = domain.directory / "disks"
    directory.mkdir(exist_ok=True)
    write_atomically(directory / disk.vdev, json.dumps(asdict(record)))
    if loop and disk.exclusive:
        keep(loop, kept=True)  # from here on the record finds it
    number = os.makedev(loop.major, loop.minor) if loop else os.stat(device).st_rdev
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
