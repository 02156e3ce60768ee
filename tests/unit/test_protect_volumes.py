"""Workloads with image volumes, over a toolstack in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from daemonkit.faults import Invalid
from protect.node import Node
from protect.workloads import create, delete
from protect.workloads.disks import ImageVolume
from protect.zones import launch
from tests.support.agent_sim import SimAgent
from tests.support.memory_toolstack import MemoryToolstack
from tests.support.protect_node import running, workload_spec, zone_spec


@pytest.fixture
def toolstack() -> MemoryToolstack:
    return MemoryToolstack()


@pytest.fixture
async def node(tmp_path: Path, toolstack: MemoryToolstack) -> AsyncIterator[Node]:
    async with running(tmp_path, toolstack) as node:
        await launch.launch(node, zone_spec())
        yield node


@pytest.fixture
def agent(node: Node, toolstack: MemoryToolstack) -> SimAgent:
    return toolstack.of_zone("z1").agent


async def test_images_that_are_volumes_are_disks_too(
    node: Node, toolstack: MemoryToolstack, agent: SimAgent, tmp_path: Path
) -> None:
    """One disk for each image, however often it is used; all go with the workload."""
    other = tmp_path / "other.squashfs"
    other.write_bytes(b"\0" * 512)
    spec = workload_spec(tmp_path)
    volumes = (
        ImageVolume("a", other, "squashfs"),
        ImageVolume("b", spec.image_path, "squashfs", "etc"),
        ImageVolume("c", other, "squashfs", "data/file"),
    )
    created = await create.create(node, replace(spec, image_volumes=volumes))
    assert created.vdevs == ("xvda", "xvdb")
    disks = toolstack.of_zone("z1").disks
    assert {name: (disk.path, disk.readonly) for name, disk in disks.items()} == {
        "xvda": (spec.image_path, True),
        "xvdb": (other, True),
    }
    [asked_for] = [r.create_container for r in agent.requests if r.HasField("create_container")]
    told = [(v.name, v.disk, v.type, v.sub_path) for v in asked_for.image_volumes]
    assert told == [
        ("a", "xvdb", "squashfs", ""),
        ("b", "xvda", "squashfs", "etc"),
        ("c", "xvdb", "squashfs", "data/file"),
    ]
    assert (await create.create(node, workload_spec(tmp_path, "w2"))).vdevs == ("xvdc",)
    assert node.store.load().workloads[0].vdevs == ("xvda", "xvdb")
    await delete.delete(node, "w2")
    await delete.delete(node, "w1")
    assert not node.store.load().workloads and not toolstack.of_zone("z1").disks and not agent.processes


async def test_a_volume_whose_image_is_not_there(node: Node, tmp_path: Path) -> None:
    spec = replace(workload_spec(tmp_path), image_volumes=(ImageVolume("a", tmp_path / "none", "squashfs"),))
    with pytest.raises(Invalid, match="none"):
        await create.create(node, spec)
    assert not node.workloads
