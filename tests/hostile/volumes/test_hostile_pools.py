"""File servers that never answer must not hold up the daemon."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest

from protect.host import mounts
from protect.model.volume import Volume, close_all
from protect.volumes.host_volumes import HostVolumes
from tests.support.images import busybox
from tests.support.protect.daemons import GUEST
from tests.support.protect.silent_server import SilentServer
from tests.support.protect.zones import Zones, failing, needs_protectd, serving
from tests.support.waiting import until
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, needs_protectd]
TOO_LATE = grpc.StatusCode.DEADLINE_EXCEEDED
MANY = 20
"""More volumes than protectd had threads for them."""


@pytest.fixture
async def zones(tmp_path: Path, busybox_image: Path) -> AsyncIterator[Zones]:
    async with serving(tmp_path, busybox_image, timeouts={"call": "4s"}) as zones:
        await asyncio.gather(zones.create_zone("evil"), zones.create_zone("z1"))
        yield zones


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[SilentServer]:
    with SilentServer(tmp_path / "silent") as server:
        yield server


async def _create(zones: Zones, zone: str, workload: str, path: Path | str) -> None:
    binds = [busybox.bind(f"/run/xenpod/shared/{workload}/v", "/v", "rbind", "ro")]
    config = busybox.config(workload, ["/bin/ls", "/v/"], mounts=binds)
    volume = pb.Volume(name="v", host_path=str(path), readonly=True, create_directory=True)
    await zones.create([], workload, zone_id=zone, oci_config=config, volumes=[volume])


async def _runs(zones: Zones, workload: str, path: Path | str) -> None:
    await _create(zones, "z1", workload, path)
    await zones.start(workload)
    assert (await zones.wait(workload)).exit_code == 0


def _lookups(zones: Zones) -> list[int]:
    """The lookup processes of this protectd."""
    process = zones.protectd.daemon.process
    assert process is not None
    found = []
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        for pid in (task / "children").read_text().split():
            try:
                name = Path("/proc", pid, "comm").read_text().strip()
            except FileNotFoundError:
                continue
            found += [int(pid)] if name == "lookup" else []
    return found


async def test_a_silent_file_server_holds_up_its_own_zone_alone(
    zones: Zones, silent: SilentServer, tmp_path: Path
) -> None:
    """Even if the waiting process cannot be killed."""
    (tmp_path / "honest/deep").mkdir(parents=True)
    stuck = [asyncio.create_task(_create(zones, "evil", f"e{n}", silent.path / f"{n}")) for n in range(MANY)]
    await until(lambda: silent.asked > 0)
    await _runs(zones, "w1", tmp_path / "honest/deep")
    for each in stuck:
        async with failing(TOO_LATE) as said:
            await each
        assert str(silent.path) in said[0] and "within 4 s" in said[0]
    assert 1 <= len(_lookups(zones)) <= 2
    async with failing(TOO_LATE) as said:
        await _create(zones, "evil", "e0", tmp_path / "honest/deep")
    assert "earlier look-ups of the zone have not come back" in said[0]
    await _runs(zones, "w2", tmp_path / "honest/deep")
    await _runs(zones, "w3", "/")  # with all other mounts of the host
    # A zone with stuck look-ups ends as usual, and protectd too.
    await zones.destroy_zone("evil")
    assert zones.protectd.daemon.process is not None
    zones.protectd.daemon.process.terminate()
    await zones.protectd.daemon.restart()
    await _runs(zones, "w4", tmp_path / "honest/deep")
    silent.abort()


async def test_once_the_file_server_answers_its_zone_goes_on(
    zones: Zones, silent: SilentServer, tmp_path: Path
) -> None:
    stuck = [asyncio.create_task(_create(zones, "evil", f"e{n}", silent.path / "x")) for n in range(2)]
    for each in stuck:
        async with failing(TOO_LATE):
            await each
    assert _lookups(zones)
    silent.abort()
    await until(lambda: not _lookups(zones))
    await _create(zones, "evil", "e0", tmp_path / "made/by/us")
    assert (tmp_path / "made/by/us").is_dir()


async def test_file_server_is_asked_only_for_the_path(silent: SilentServer, tmp_path: Path) -> None:
    """Kind, mount and copy of the found file are known without the file server."""
    volumes = HostVolumes(tmp_path / "volumes", GUEST / "lookup")
    close_all(await volumes.take("z1", [Volume("v", str(silent.path))], 60))
    # Below it the host's kernel is left out; another server is not in the way.
    close_all(await volumes.take("z1", [Volume("v", str(tmp_path))], 60))
    assert silent.asked == 0
    silent.abort()


@pytest.mark.parametrize("follow", [False, True])
async def test_concurrent_pods_fail_no_volume(tmp_path: Path, follow: bool) -> None:
    """Their network namespaces are mounts left out of volumes, and may go in the meantime."""
    volumes = HostVolumes(tmp_path / "volumes", GUEST / "lookup")
    volume = Volume("v", str(tmp_path / "shared"), follow_host=follow)
    (tmp_path / "shared").mkdir()
    mounts.bind(tmp_path, tmp_path)
    mounts.propagate(tmp_path, mounts.MS_SHARED)
    ending = False

    def come_and_go() -> None:
        while not ending:
            for name in "abcdefgh":
                (tmp_path / name).touch()
                mounts.bind(Path("/proc/self/ns/net"), tmp_path / name)
            for name in "abcdefgh":
                assert mounts.unmount(tmp_path / name)
                os.unlink(tmp_path / name)

    coming = asyncio.create_task(asyncio.to_thread(come_and_go))
    try:
        for _ in range(50):
            close_all(await volumes.take("z1", [volume], 60))
    finally:
        ending = True
        await coming
        assert mounts.unmount(tmp_path)
