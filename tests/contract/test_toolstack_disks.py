"""Duties of every toolstack for writable disks, and for the maximum number of disks."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from protect.model.toolstack import DiskSpec
from tests.support.protect.stage import MIB, PATIENCE, Agent, Stage
from tests.support.waiting import until
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root


async def test_a_writable_disk_is_created_and_removed_on_the_host(
    stage: Stage, images: tuple[Path, Path], tmp_path: Path
) -> None:
    """A scratch disk, attached before the start: its file has the written blocks only."""
    file = tmp_path / "scratch.img"
    with file.open("wb") as made:
        made.truncate(64 * MIB)
    info = await stage.create(environment={"XENPOD_SCRATCH": "xvdzy"})
    await stage.toolstack.attach_disk(info.id, DiskSpec("xvdzy", file, readonly=False))
    await stage.toolstack.unpause(info.id)
    agent = await stage.connect(info.id)
    await agent.call(mount_scratch=pb.MountScratch(disk="xvdzy"))
    await stage.toolstack.attach_disk(info.id, DiskSpec("xvda", images[0]))
    write = "dd if=/dev/zero of=/a bs=1M count=16 conv=fsync; exec sleep 1000"
    await agent.begin("c1", "xvda", "sh", "-c", write)
    await until(lambda: file.stat().st_blocks * 512 >= 16 * MIB, PATIENCE)
    await agent.call(delete_container=pb.DeleteContainer(id="c1"))
    await until(lambda: file.stat().st_blocks * 512 < 8 * MIB, PATIENCE)
    await stage.toolstack.destroy(info.id)


async def test_as_many_disks_as_said_leave_memory_for_the_zone(
    stage: Stage, images: tuple[Path, Path]
) -> None:
    """All mounted, in stacks of eight: with a page for each request in flight this would be a panic."""
    memory = 192 << 20
    agent = await stage.boot(memory_bytes=memory)
    count = min(stage.toolstack.disk_limit(memory, 1).disks, 56) // 8 * 8
    assert count >= 16
    letters = "abcdefghijklmnopqrstuvwxyz"
    vdevs = [f"xvd{letter}" for letter in letters] + [f"xvda{letter}" for letter in letters]
    vdevs += [f"xvdb{letter}" for letter in letters]
    figures = [await _available(agent, stage, images[0], "before")]
    for begin in range(0, count, 8):
        chosen = vdevs[begin : begin + 8]
        await asyncio.gather(
            *(stage.toolstack.attach_disk(agent.domain, DiskSpec(vdev, images[1])) for vdev in chosen)
        )
        await agent.begin(f"c{begin}", " ".join(chosen), "sleep", "100000")
        figures.append(await _available(agent, stage, images[0], f"m{begin}"))
    (stage.folder / "figures").write_text(f"{figures}\n")
    each = (figures[0] - figures[-1]) // count
    assert figures[-1] > 24 << 20, f"a disk takes {each} bytes: {figures}"


async def _available(agent: Agent, stage: Stage, image: Path, name: str) -> int:
    """Free memory of the zone, by its kernel."""
    await stage.toolstack.attach_disk(agent.domain, DiskSpec("xvdyz", image))
    code, said = await agent.run(name, "xvdyz", "cat", "/proc/meminfo")
    await stage.toolstack.detach_disk(agent.domain, "xvdyz")
    assert code == 0
    return int(re.search(rb"MemAvailable: +(\d+) kB", said)[1]) << 10  # type: ignore[index]
