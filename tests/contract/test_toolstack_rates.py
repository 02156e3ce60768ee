"""Rates of a domain's disks, held by the host on both toolstacks."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from protect.model.domain.shares import DiskRates
from protect.model.errors import DomainGone
from protect.model.toolstack import DiskSpec, DomainId, DomainInfo
from tests.support.images import busybox
from tests.support.protect.disk_counts import counted, limits
from tests.support.protect.stage import Agent, Stage

pytestmark = pytest.mark.root
MIB = 1 << 20
SIZE = 3 * MIB
RATES = DiskRates(read_bytes=MIB, write_bytes=MIB)
LEAST = 0.75 * SIZE / MIB
"""Minimum seconds; a slow machine takes more."""


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    path = tmp_path / "disk.img"
    path.write_bytes(os.urandom(4 * SIZE))
    return path


async def info_of(stage: Stage, agent: Agent) -> DomainInfo:
    return next(info for info in await stage.toolstack.list() if info.id == agent.domain)


async def copied(agent: Agent, root: str, vdev: str, way: str, part: int) -> float:
    """Seconds in which a container reads or writes an unread part of the disk."""
    ends = f"if=/zone/{vdev} of=/dev/null skip={part * SIZE // 65536}"
    if way == "write":
        ends = f"if=/dev/zero of=/zone/{vdev} seek={part * SIZE // 65536} conv=fsync,notrunc oflag=direct"
    copy = f"dd {ends} bs=65536 count={SIZE // 65536}"
    begun = time.monotonic()
    assert await in_devices(agent, f"{way}{part}", root, vdev, copy) == 0
    return time.monotonic() - begun


async def in_devices(agent: Agent, name: str, root: str, vdev: str, command: str) -> int:
    """Exit code of a container with all devices of the zone, started once the disk is present."""
    script = f"until [ -b /zone/{vdev} ]; do sleep 0.1; done; {command}"
    mounts = [busybox.bind("/dev", "/zone", "bind", "rw"), busybox.bind("/dev/zero", "/dev/zero", "bind")]
    return (await agent.run(name, root, "sh", "-c", script, mounts=mounts, devices=True))[0]


async def test_disk_rates_of_a_domain_are_held(stage: Stage, images: tuple[Path, Path], disk: Path) -> None:
    agent = await stage.boot()
    toolstack = stage.toolstack
    await toolstack.attach_disk(agent.domain, DiskSpec("xvda", images[0]))
    await toolstack.set_disk_rates(agent.domain, RATES)
    await toolstack.attach_disk(agent.domain, DiskSpec("xvdb", disk, readonly=False))
    group = stage.disk_group(await info_of(stage, agent))
    for part, way in enumerate(("read", "write")):
        before = counted(group, way)
        copying = asyncio.ensure_future(copied(agent, "xvda", "xvdb", way, part))
        most = before
        while (
            not copying.done()
        ):  # the end of the container's own group takes counts along (Linux before 6.5)
            most = max(most, counted(group, way))
            await asyncio.wait([copying], timeout=0.05)
        assert most - before >= SIZE / 2, "whoever did it is not in the group"
        assert await copying >= LEAST
    await stage.restart()
    # As protectd does at its start.
    await stage.toolstack.set_disk_rates(agent.domain, RATES)
    again = await stage.connect(agent.domain)
    for vdev, image in (("xvdc", images[1]), ("xvdd", disk)):
        await stage.toolstack.attach_disk(agent.domain, DiskSpec(vdev, image))
    assert await copied(again, "xvdc", "xvdd", "read", 2) >= LEAST
    await stage.toolstack.set_disk_rates(agent.domain, DiskRates())
    assert limits(group, "read") == limits(group, "write") == []
    await stage.toolstack.destroy(agent.domain)
    assert not group.exists()


async def test_rates_of_a_missing_domain_are_an_error(stage: Stage) -> None:
    with pytest.raises(DomainGone):
        await stage.toolstack.set_disk_rates(DomainId(2_000_000_000), RATES)
