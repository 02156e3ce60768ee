"""Copies of small files: their way to agents in memory, and zones that refuse them."""

from __future__ import annotations

import asyncio
import functools
import json
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from daemonkit.faults import Refused, TooLate
from protect.assembly import Assembly
from protect.model.copied_files import FileChunk, FileTree, FileVolume, FoundFiles, WantedFiles
from protect.model.workload import Workload
from protect.state import records
from protect.volumes import filetree
from protect.volumes.watch import FileWatches
from tests.support.agent.agent_sim import SimAgent
from tests.support.cri.kubelet_files import AtomicFiles
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.protect_node import hasten, running, workload_spec, zone_spec
from tests.support.waiting import until
from xenpod_proto.channel.v1 import channel_pb2 as pb


@dataclass
class DiskFiles:
    """``HostFiles`` with its own look-up of paths; ``returned`` holds the files written back."""

    watches: FileWatches = field(default_factory=FileWatches)
    returned: list[tuple[str, bytes]] = field(default_factory=list)

    async def find(self, zone_id: str, wanted: Sequence[WantedFiles], timeout: float) -> list[FoundFiles]:
        return [self._find(each) for each in wanted]

    def _find(self, wanted: WantedFiles) -> FoundFiles:
        place = os.open(wanted.volume.host_path, os.O_PATH)
        try:
            watch = self.watches.add(place, wanted.changed) if wanted.changed else None
            return FoundFiles(filetree.scan(place, wanted.volume), watch)
        except filetree.NotCopied as error:
            return FoundFiles(reason=str(error))
        finally:
            os.close(place)

    async def read(self, zone_id: str, tree: FileTree, chunks: Sequence[FileChunk]) -> list[bytes]:
        return filetree.read_chunks(tree, chunks)

    async def give_back(self, zone_id: str, volume: FileVolume, content: bytes, timeout: float) -> None:
        self.returned.append((volume.host_path, content))


@pytest.fixture
def toolstack() -> MemoryToolstack:
    return MemoryToolstack()


@pytest.fixture
async def host() -> AsyncIterator[DiskFiles]:
    made = DiskFiles()
    yield made
    made.watches.close()


@pytest.fixture
def files(tmp_path: Path) -> AtomicFiles:
    made = AtomicFiles(tmp_path / "settings")
    made.write({"a": "one"})
    return made


def volume(path: Path, name: str = "0", **more: object) -> FileVolume:
    values: dict[str, object] = {"volume": path.name, "keep_current": True}
    return FileVolume(name, str(path), **(values | more))  # type: ignore[arg-type]


async def created(
    protectd: Assembly, folder: Path, *volumes: FileVolume, workload: str = "w1", zone: str = "z1"
) -> Workload:
    return await protectd.creation.create(workload_spec(folder, workload, zone, file_volumes=volumes))


def puts(agent: SimAgent) -> list[pb.PutFiles]:
    return [request.put_files for request in agent.requests if request.WhichOneof("op") == "put_files"]


def put_texts(agent: SimAgent) -> list[bytes]:
    """The texts in the files of each put."""
    return [
        b"".join(each.content for each in put.entries if each.type == pb.FILE_TYPE_REGULAR)
        for put in puts(agent)
    ]


def has(agent: SimAgent, text: bytes) -> bool:
    return text in put_texts(agent)


async def test_workloads_share_a_copy_of_their_volume(
    tmp_path: Path, toolstack: MemoryToolstack, host: DiskFiles, files: AtomicFiles
) -> None:
    async with running(tmp_path, toolstack, files=host) as protectd:
        await protectd.launcher.launch(zone_spec())
        agent = toolstack.of_zone("z1").agent
        await created(protectd, tmp_path, volume(files.path))
        await created(protectd, tmp_path, volume(files.path, "1"), workload="w2")
        (put,) = puts(agent)
        assert (put.owner, put.volume, put.first, put.last) == ("", "settings", True, True)
        assert put.keep == [os.readlink(files.path / "..data"), "..data", "a"]
        shown = [
            (each.name, each.owner, each.volume) for each in agent.requests[-1].create_container.file_volumes
        ]
        assert shown == [("1", "", "settings")]
        files.write({"a": "two"})
        await until(lambda: put_texts(agent)[-1] == b"two")
        await protectd.workload_removal.delete("w1")
        files.write({"a": "three"})
        await until(lambda: put_texts(agent)[-1] == b"three")
        await protectd.workload_removal.delete("w2")
        assert not protectd.registry.zones["z1"].files.copies["", "settings"].watched


async def test_many_changes_are_joined(
    tmp_path: Path, toolstack: MemoryToolstack, host: DiskFiles, files: AtomicFiles
) -> None:
    async with running(tmp_path, toolstack, files=host) as protectd:
        await protectd.launcher.launch(zone_spec())
        agent = toolstack.of_zone("z1").agent
        await created(protectd, tmp_path, volume(files.path))
        for number in range(200):
            files.write({"a": str(number)})
        await until(lambda: put_texts(agent)[-1] == b"199")
        assert len(puts(agent)) < 20


async def test_a_zone_with_refused_copies_delays_no_other(
    tmp_path: Path, toolstack: MemoryToolstack, host: DiskFiles, files: AtomicFiles
) -> None:
    """The zone has a single part under way, for any number of changes; its next part is the last version."""
    large = AtomicFiles(tmp_path / "large")
    large.write({"a": "x" * 900_000})
    async with running(tmp_path, toolstack, files=host) as protectd:
        for zone in ("z1", "z2"):
            await protectd.launcher.launch(zone_spec(zone))
            await created(
                protectd,
                tmp_path,
                volume(files.path),
                volume(large.path, "1"),
                workload=f"w-{zone}",
                zone=zone,
            )
        silent, honest = (toolstack.of_zone(zone).agent for zone in ("z1", "z2"))
        silent.unanswered.add("put_files")
        silent.requests.clear()
        hasten(protectd, call=0.2)
        for number in range(3):
            large.write({"a": f"{number}" * 900_000})
            files.write({"a": f"small {number}"})
            await until(functools.partial(has, honest, f"small {number}".encode()))
        sizes = [put.ByteSize() for put in puts(silent)]
        assert sizes and max(sizes) < 300_000
        with pytest.raises(TooLate):
            await created(protectd, tmp_path, volume(files.path, volume="other"), workload="w9")
        assert "w9" not in protectd.registry.workloads
        silent.unanswered.clear()
        await until(lambda: b"small 2" in put_texts(silent))
        await until(lambda: sum(len(text) for text in put_texts(silent) if text.startswith(b"2")) >= 900_000)


async def test_an_ending_zone_is_not_awaited(
    tmp_path: Path, toolstack: MemoryToolstack, host: DiskFiles, files: AtomicFiles
) -> None:
    async with running(tmp_path, toolstack, files=host) as protectd:
        await protectd.launcher.launch(zone_spec())
        await created(protectd, tmp_path, volume(files.path))
        zone, agent = protectd.registry.zones["z1"], toolstack.of_zone("z1").agent
        agent.unanswered.add("put_files")
        files.write({"a": "two"})
        await until(lambda: zone.files.renewing is not None)
        renewing = zone.files.renewing
        assert renewing is not None
        await protectd.removal.destroy("z1")
        async with asyncio.timeout(60):
            await renewing


async def test_after_a_restart_the_record_is_read(
    tmp_path: Path, toolstack: MemoryToolstack, host: DiskFiles, files: AtomicFiles
) -> None:
    """The agent tells the zone's copies, the record tells the volumes to follow."""
    async with running(tmp_path, toolstack, files=host) as protectd:
        await protectd.launcher.launch(zone_spec())
        await created(protectd, tmp_path, volume(files.path))
        recorded = protectd.registry.workloads["w1"].workload
        body = json.loads(json.dumps(records.of_workload(recorded)))
        assert recorded.files and records.workload(body) == recorded
    agent = toolstack.of_zone("z1").agent
    agent.errors["put_files"] = pb.Error(code=6, message="it has this version")
    agent.requests.clear()
    async with running(tmp_path, toolstack, files=host) as protectd:
        await until(lambda: len(puts(agent)) == 1)
        await until(lambda: protectd.registry.zones["z1"].files.copies["", "settings"].version)
        agent.errors.clear()
        files.write({"a": "two"})
        await until(lambda: put_texts(agent)[-1] == b"two")


async def test_a_zone_with_an_older_agent_gets_no_copies(
    tmp_path: Path, toolstack: MemoryToolstack, host: DiskFiles, files: AtomicFiles
) -> None:
    async with running(tmp_path, toolstack, files=host) as protectd:
        toolstack.file_volumes = False
        zone = await protectd.launcher.launch(zone_spec())
        assert not zone.file_volumes
        with pytest.raises(Refused, match="knows no file volumes"):
            await created(protectd, tmp_path, volume(files.path))


async def test_volumes_beyond_the_zones_room_for_copies_are_shared(
    tmp_path: Path, toolstack: MemoryToolstack, host: DiskFiles
) -> None:
    """A sixteenth of it is for copies: of 256 MiB four of a little less than 4 MiB."""
    volumes = []
    for number in range(5):
        made = AtomicFiles(tmp_path / f"large-{number}")
        made.write({"a": b"x" * (15 << 18)})
        volumes.append(volume(made.path, str(number)))
    async with running(tmp_path, toolstack, files=host) as protectd:
        await protectd.launcher.launch(zone_spec())
        workload = await created(protectd, tmp_path, *volumes)
        assert [each.name for each in workload.files] == ["0", "1", "2", "3"]
        asked = toolstack.of_zone("z1").agent.requests[-1].create_container
        assert list(asked.shared_volumes) == ["4"]


@pytest.mark.parametrize("writable", [True, False])
async def test_returned_bytes_are_bounded_by_the_request(
    tmp_path: Path, toolstack: MemoryToolstack, host: DiskFiles, writable: bool
) -> None:
    """Nothing is written back from a read-only volume, even if a record of commit bef7f32f asks for it."""
    log = tmp_path / "message"
    log.touch()
    own = volume(log, volume="", keep_current=False, writable=writable, return_bytes=100)
    async with running(tmp_path, toolstack, files=host) as protectd:
        await protectd.launcher.launch(zone_spec())
        await created(protectd, tmp_path, own)
        agent = toolstack.of_zone("z1").agent
        agent.left = b"y" * 4000
        agent.exit("w1", 3)
        await until(lambda: protectd.registry.workloads["w1"].ended.is_set())
        assert host.returned == ([(str(log), b"y" * 100)] if writable else [])
