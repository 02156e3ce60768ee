"""The disks of workloads: stacks, image volumes, and shared disks of a zone's workloads."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from daemonkit.faults import Broken, Exhausted, Invalid
from protect.assembly import Assembly
from protect.channel.frames import Frame, Type
from protect.config import ZoneLimits
from protect.model.container import ImageFilesystem, ImageVolume, Stack, WorkloadSpec
from protect.model.errors import ToolstackError
from protect.model.workload import WorkloadState
from tests.support.agent.agent_sim import SimAgent
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.protect_node import MemoryVolumes, running, workload_spec, zone_spec
from tests.support.waiting import until
from xenpod_proto.channel.v1 import channel_pb2 as pb


def stack(folder: Path, *names: str) -> Stack:
    for name in names:
        (folder / name).touch()
    return tuple(ImageFilesystem(folder / name, "squashfs") for name in names)


def spec(folder: Path, workload_id: str, *names: str) -> WorkloadSpec:
    return replace(workload_spec(folder, workload_id), stack=stack(folder, *names))


def attached(toolstack: MemoryToolstack) -> dict[str, str]:
    """The file's name of each attached disk."""
    disks = toolstack.of_zone("z1").disks
    assert all(disk.readonly for disk in disks.values())
    return {vdev: disk.path.name for vdev, disk in disks.items()}


def told(agent: SimAgent) -> list[list[tuple[str, str]]]:
    """The root of each container in the agent's request."""
    asked = [r.create_container for r in agent.requests if r.HasField("create_container")]
    return [[(one.disk, one.type) for one in request.rootfs] for request in asked]


async def test_image_volumes_are_disks_too(
    protectd: Assembly, toolstack: MemoryToolstack, agent: SimAgent, tmp_path: Path
) -> None:
    """A disk for each file, for any number of uses; all disks go with the workload."""
    low, top, model = stack(tmp_path, "low", "top", "model")
    volumes = (
        ImageVolume("a", (model,)),
        ImageVolume("b", (low,), "etc"),
        ImageVolume("c", (low, ImageFilesystem(model.path, "erofs")), "data/file"),
    )
    created = await protectd.creation.create(
        replace(spec(tmp_path, "w1", "low", "top"), image_volumes=volumes)
    )
    assert [disk.vdev for disk in created.disks] == ["xvda", "xvdb", "xvdc"]
    assert attached(toolstack) == {"xvda": "low", "xvdb": "top", "xvdc": "model"}
    assert told(agent) == [[("xvda", "squashfs"), ("xvdb", "squashfs")]]
    [asked] = [r.create_container for r in agent.requests if r.HasField("create_container")]
    assert [
        (v.name, [f"{f.disk} {f.type}" for f in v.filesystems], v.sub_path) for v in asked.image_volumes
    ] == [
        ("a", ["xvdc squashfs"], ""),
        ("b", ["xvda squashfs"], "etc"),
        ("c", ["xvda squashfs", "xvdc erofs"], "data/file"),
    ]
    assert protectd.registry.store.load().workloads == (created,)
    await protectd.workload_removal.delete("w1")
    assert not protectd.registry.store.load().workloads and not attached(toolstack) and not agent.processes


async def test_later_workloads_share_a_disk_and_the_last_workload_detaches(
    protectd: Assembly, toolstack: MemoryToolstack, agent: SimAgent, tmp_path: Path
) -> None:
    await protectd.creation.create(spec(tmp_path, "w1", "base", "one"))
    await protectd.creation.create(spec(tmp_path, "w2", "base", "two"))
    assert attached(toolstack) == {"xvda": "base", "xvdb": "one", "xvdc": "two"}
    assert [[disk for disk, _ in root] for root in told(agent)] == [["xvda", "xvdb"], ["xvda", "xvdc"]]
    await protectd.workload_removal.delete("w1")
    assert attached(toolstack) == {"xvda": "base", "xvdc": "two"}
    await protectd.creation.create(spec(tmp_path, "w3", "base", "one"))
    assert attached(toolstack) == {"xvda": "base", "xvdb": "one", "xvdc": "two"}
    await protectd.workload_removal.delete("w2")
    await protectd.workload_removal.delete("w3")
    assert not attached(toolstack)


async def test_a_path_with_another_file_is_another_disk(
    protectd: Assembly, toolstack: MemoryToolstack, agent: SimAgent, tmp_path: Path
) -> None:
    await protectd.creation.create(spec(tmp_path, "w1", "image"))
    # During the attachment of the first image its inode is in use, even if its name changes.
    (tmp_path / "image").rename(tmp_path / "old")
    await protectd.creation.create(spec(tmp_path, "w2", "image"))
    await protectd.creation.create(spec(tmp_path, "w3", "old"))
    assert [root[0][0] for root in told(agent)] == ["xvda", "xvdb", "xvda"]


async def test_two_simultaneous_deletes_leave_nothing(
    protectd: Assembly, toolstack: MemoryToolstack, tmp_path: Path
) -> None:
    for name in ("w1", "w2", "w3"):
        await protectd.creation.create(spec(tmp_path, name, "base"))
    await asyncio.gather(*(protectd.workload_removal.delete(name) for name in ("w1", "w2", "w3")))
    assert not attached(toolstack) and not protectd.registry.workloads


async def test_a_deleted_workload_holds_no_disk(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    """Two workloads end at the same time: one of them detaches."""
    volumes = MemoryVolumes(tmp_path)
    async with running(tmp_path, toolstack, volumes=volumes) as protectd:
        await protectd.launcher.launch(zone_spec())
        for name in ("w1", "w2"):
            await protectd.creation.create(spec(tmp_path, name, "base"))
        # After its disks: both exist until the deletion succeeds.
        volumes.failing = {"detach"}
        for name, left in (("w1", {"xvda": "base"}), ("w2", {})):
            with pytest.raises(Broken):
                await protectd.workload_removal.delete(name)
            assert attached(toolstack) == left
        volumes.failing = set()
        for name in ("w1", "w2"):
            await protectd.workload_removal.delete(name)
        assert not protectd.registry.workloads


async def test_disk_being_attached_or_detached_is_not_shared(
    protectd: Assembly, toolstack: MemoryToolstack, tmp_path: Path
) -> None:
    """A disk in attachment for another creation may fail to come; a disk in detachment goes."""
    entered, go = toolstack.gate("attach_disk")
    first = asyncio.create_task(protectd.creation.create(spec(tmp_path, "w1", "base")))
    await entered.wait()
    second = asyncio.create_task(protectd.creation.create(spec(tmp_path, "w2", "base")))
    await until(lambda: "w2" in protectd.registry.workloads)
    go.set()
    assert [(await task).disks[0].vdev for task in (first, second)] == ["xvda", "xvdb"]
    entered, go = toolstack.gate("detach_disk")
    going = asyncio.create_task(protectd.workload_removal.delete("w2"))
    await entered.wait()
    third = await protectd.creation.create(spec(tmp_path, "w3", "base"))
    assert third.disks[0].vdev == "xvda"
    go.set()
    await going
    assert attached(toolstack) == {"xvda": "base"}


async def test_a_failed_creation_leaves_shared_disks(
    protectd: Assembly, toolstack: MemoryToolstack, tmp_path: Path
) -> None:
    await protectd.creation.create(spec(tmp_path, "w1", "base"))
    toolstack.failing = {"attach_disk"}
    with pytest.raises(ToolstackError):
        await protectd.creation.create(spec(tmp_path, "w2", "base", "two", "three"))
    toolstack.failing = set()
    assert attached(toolstack) == {"xvda": "base"} and list(protectd.registry.workloads) == ["w1"]
    await protectd.creation.create(spec(tmp_path, "w2", "base", "two", "three"))
    assert attached(toolstack) == {"xvda": "base", "xvdb": "two", "xvdc": "three"}


@pytest.mark.parametrize("answers_late", [False, True])
async def test_an_agent_waiting_for_disks_learns_of_a_failed_attach(
    protectd: Assembly,
    toolstack: MemoryToolstack,
    agent: SimAgent,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answers_late: bool,
) -> None:
    """The agent gets the container's request during the attachment, and would wait to its own deadline.

    The agent's answer may come before its answer to the deletion.
    """
    answer, waiting, deletions = agent._call, list[int](), list[Frame]()

    def call(frame: Frame) -> None:
        request = pb.Request.FromString(frame.payload)
        if request.HasField("create_container"):
            waiting.append(frame.stream)
            return
        if request.HasField("delete_container") and waiting:
            aborted = pb.Reply(error=pb.Error(code=10, message="it is being deleted"))
            agent.send(Frame(Type.REPLY, waiting.pop(), aborted.SerializeToString()))
            if answers_late:
                deletions.append(frame)
                return
        for late in (*deletions, frame):
            answer(late)
        deletions.clear()

    monkeypatch.setattr(agent, "_call", call)
    entered, go = toolstack.gate("attach_disk")
    toolstack.failing = {"attach_disk"}
    creating = asyncio.create_task(protectd.creation.create(spec(tmp_path, "w1", "base")))
    await entered.wait()
    await until(lambda: bool(waiting))
    agent.requests.clear()
    go.set()
    with pytest.raises(ToolstackError, match="on purpose"):
        await creating
    # At once, and by the undo.
    operations = [request.WhichOneof("op") for request in agent.requests]
    assert operations == ["delete_container"] * 2 and not protectd.registry.workloads


@pytest.mark.parametrize("fails", [False, True])
async def test_workload_is_not_created_before_its_disks_are_attached(
    protectd: Assembly, toolstack: MemoryToolstack, agent: SimAgent, tmp_path: Path, fails: bool
) -> None:
    """For any answer of the agent: others share only disks of completely created workloads."""
    entered, go = toolstack.gate("attach_disk")
    wanted = replace(spec(tmp_path, "w1", "base"), stdin=True)
    creating = asyncio.create_task(protectd.creation.create(wanted))
    await entered.wait()
    await until(lambda: ("w1", "") in agent.processes)
    client = protectd.registry.zones["z1"].agent
    await client.facts("1.0")  # the answer comes after the answer to the creation
    assert protectd.registry.workloads["w1"].workload.state is WorkloadState.CREATING
    toolstack.failing = {"attach_disk"} if fails else set()
    go.set()
    if not fails:
        assert (await creating).state is WorkloadState.CREATED
        return
    with pytest.raises(ToolstackError, match="on purpose"):
        await creating
    table = client._link._streams  # type: ignore[union-attr]
    assert not table._outputs and not table._inputs and not protectd.registry.workloads


async def test_a_repeated_deletion_detaches_after_the_last_holder(
    protectd: Assembly, toolstack: MemoryToolstack, tmp_path: Path
) -> None:
    await protectd.creation.create(spec(tmp_path, "w1", "base", "one"))
    await protectd.creation.create(spec(tmp_path, "w2", "base"))
    toolstack.failing = {"detach_disk"}
    with pytest.raises(ToolstackError):
        await protectd.workload_removal.delete("w1")
    toolstack.failing = set()
    # The name is still taken, and the disk cannot be shared.
    await protectd.creation.create(spec(tmp_path, "w3", "one"))
    assert attached(toolstack) == {"xvda": "base", "xvdb": "one", "xvdc": "one"}
    await protectd.workload_removal.delete("w2")
    await protectd.workload_removal.delete("w1")
    assert attached(toolstack) == {"xvdc": "one"}


async def test_disks_are_shared_after_a_restart(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(zone_spec())
        await protectd.creation.create(spec(tmp_path, "w1", "base"))
    async with running(tmp_path, toolstack) as protectd:
        await protectd.creation.create(spec(tmp_path, "w2", "base"))
        await protectd.workload_removal.delete("w1")
        assert attached(toolstack) == {"xvda": "base"}
        await protectd.workload_removal.delete("w2")
        assert not attached(toolstack)


async def test_the_disks_of_a_zone_are_bounded(tmp_path: Path, toolstack: MemoryToolstack) -> None:
    async with running(tmp_path, toolstack, ZoneLimits(disks_per_zone=3)) as protectd:
        await protectd.launcher.launch(zone_spec())
        await protectd.creation.create(spec(tmp_path, "w1", "a", "b"))
        with pytest.raises(Exhausted, match="zone z1 has 2 disks, 2 more would be more than 3"):
            await protectd.creation.create(spec(tmp_path, "w2", "b", "c", "d"))
        await protectd.creation.create(spec(tmp_path, "w2", "a", "b", "c"))
        assert len(attached(toolstack)) == 3 and set(protectd.registry.workloads) == {"w1", "w2"}
    with pytest.raises(ValueError, match="676"):
        ZoneLimits(disks_per_zone=677)


async def test_impossible_files_are_refused(protectd: Assembly, tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "a").touch()
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    for names, words in (
        (("a", "none"), "no image file .*none: No such file"),
        (("a", "directory"), "not a regular file"),
        (("a", "c", "a"), "in one stack twice"),
        (("a", "b"), "in one stack twice"),
    ):
        wrong = tuple(ImageFilesystem(tmp_path / name, "squashfs") for name in names)
        if "c" in names:
            (tmp_path / "c").touch()
        with pytest.raises(Invalid, match=words):
            await protectd.creation.create(replace(workload_spec(tmp_path), stack=wrong))
        with pytest.raises(Invalid, match=words):
            volume = ImageVolume("v", wrong)
            await protectd.creation.create(replace(workload_spec(tmp_path), image_volumes=(volume,)))
    assert not protectd.registry.workloads
