"""Duties of every toolstack for exclusive block devices."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemonkit.faults import Invalid, Missing, Refused
from protect.host.loops import take_loop
from protect.model.errors import DomainGone
from protect.model.toolstack import DiskSpec
from tests.contract.conftest import IN_DOM0
from tests.support.protect.stage import Agent, Stage

pytestmark = pytest.mark.root
_SIZE = 8 << 20
NO_FUNCTION = "0000:ff:1f.7"


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Path]:
    """A block device of the host, of a file."""
    backing = tmp_path / "backing"
    backing.write_bytes(bytes(_SIZE))
    loop = take_loop(backing, readonly=False)
    try:
        yield loop.path
    finally:
        loop.close()


async def _shell(agent: Agent, name: str, script: str) -> tuple[int, bytes]:
    """Run a script in the zone with the device as /disk; the root is xvda."""
    disk = {"destination": "/disk", "type": "bind", "source": "/dev/xvdb", "options": ["bind", "rw"]}
    return await agent.run(name, "xvda", "sh", "-c", script, mounts=[disk])


def _claimable(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_EXCL))
    except OSError:
        return False
    return True


async def test_a_hot_attached_device_is_written_and_read_back(
    stage: Stage, images: tuple[Path, Path], device: Path
) -> None:
    agent = await stage.boot()
    await stage.toolstack.attach_disk(agent.domain, DiskSpec("xvda", images[0]))
    await stage.toolstack.attach_disk(agent.domain, DiskSpec("xvdb", device, readonly=False, exclusive=True))
    script = "echo written by the zone | dd of=/disk bs=512 conv=notrunc,fsync 2>/dev/null; head -c 19 /disk"
    assert await _shell(agent, "c1", script) == (0, b"written by the zone")
    assert not _claimable(device)
    await stage.toolstack.detach_disk(agent.domain, "xvdb")
    assert await stage.toolstack.disks(agent.domain) == ["xvda"]
    assert device.read_bytes()[:20] == b"written by the zone\n"
    assert _claimable(device)


async def test_a_read_only_device_is_not_written(
    stage: Stage, images: tuple[Path, Path], device: Path
) -> None:
    """The device stays read-only for the guest's root; a second zone may read the device."""
    first, second = await stage.boot(), await stage.create()
    await stage.toolstack.attach_disk(first.domain, DiskSpec("xvda", images[0]))
    for domain in (first.domain, second.id):
        await stage.toolstack.attach_disk(domain, DiskSpec("xvdb", device, exclusive=True))
    code, _ = await _shell(first, "c1", "echo written | dd of=/disk bs=512 conv=notrunc,fsync 2>/dev/null")
    assert code != 0
    assert not any(device.read_bytes())


async def test_device_in_use_by_the_host_or_another_zone_is_refused(
    stage: Stage, device: Path, tmp_path: Path
) -> None:
    first, second = await stage.create(), await stage.create()
    wanted = DiskSpec("xvdb", device, readonly=False, exclusive=True)
    subprocess.run(["mkfs.ext4", "-q", str(device)], check=True)
    place = tmp_path / "mounted"
    place.mkdir()
    subprocess.run(["mount", str(device), str(place)], check=True)
    try:
        for disk in (wanted, DiskSpec("xvdb", device, exclusive=True)):
            with pytest.raises(Refused, match="the host has it mounted at|in use by the host"):
                await stage.toolstack.attach_disk(first.id, disk)
    finally:
        subprocess.run(["umount", str(place)], check=True)
    await stage.toolstack.attach_disk(first.id, wanted)
    with pytest.raises(Refused, match="another zone|is built on it"):
        await stage.toolstack.attach_disk(second.id, wanted)
    assert await stage.toolstack.disks(second.id) == []
    assert subprocess.run(["mount", str(device), str(place)], check=False, capture_output=True).returncode
    await stage.toolstack.destroy(first.id)
    await stage.toolstack.attach_disk(second.id, wanted)


async def test_impossible_pci_functions_are_refused(stage: Stage) -> None:
    """Neither host has an IOMMU here; a test on a host with an IOMMU shows that one works."""
    info = await stage.create()
    here = sorted(entry.name for entry in Path("/sys/bus/pci/devices").iterdir()) if IN_DOM0 else []
    for address in [*here, NO_FUNCTION]:
        with pytest.raises((Refused, Missing)) as refused:
            await stage.toolstack.attach_pci(info.id, address)
        reasons = "no such function" if address == NO_FUNCTION else "no IOMMU|cannot be reset|is a bridge"
        assert re.search(reasons, str(refused.value)), refused.value
        await stage.toolstack.detach_pci(info.id, address)
    assert await stage.pci_functions(info.id) == []
    await stage.toolstack.destroy(info.id)
    with pytest.raises(DomainGone):
        await stage.toolstack.attach_pci(info.id, NO_FUNCTION)
    await stage.toolstack.detach_pci(info.id, NO_FUNCTION)


async def test_path_of_another_kind_than_a_block_device_is_refused(
    stage: Stage, images: tuple[Path, Path], tmp_path: Path
) -> None:
    info = await stage.create()
    for path, fault in ((images[0], Invalid), (tmp_path / "nothing", Missing), (Path("/dev/null"), Invalid)):
        with pytest.raises(fault):
            await stage.toolstack.attach_disk(info.id, DiskSpec("xvdb", path, exclusive=True))
    assert await stage.toolstack.disks(info.id) == []


async def test_a_device_stays_claimed_and_in_use_over_a_restart(
    stage: Stage, images: tuple[Path, Path], device: Path
) -> None:
    """The same for a device that the guest has not opened."""
    agent = await stage.boot()
    domain = agent.domain
    await stage.toolstack.attach_disk(domain, DiskSpec("xvdb", device, readonly=False, exclusive=True))
    await stage.restart()
    assert await stage.toolstack.disks(domain) == ["xvdb"]
    assert not _claimable(device)
    again = await stage.connect(domain)
    await stage.toolstack.attach_disk(domain, DiskSpec("xvda", images[0]))
    script = "echo still there | dd of=/disk bs=512 conv=notrunc,fsync 2>/dev/null; head -c 11 /disk"
    assert await _shell(again, "c1", script) == (0, b"still there")
    await stage.toolstack.destroy(domain)
    assert _claimable(device)
