"""Volumes with the kubelet's names but other content, and file servers behind them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest

from tests.support.cri.kubelet_files import AtomicFiles
from tests.support.images import busybox
from tests.support.protect.silent_server import SilentServer
from tests.support.protect.zones import Zones, failing, needs_protectd, serving
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, needs_protectd]
MANY = 100_000
MIB = 1 << 20


@pytest.fixture
async def zones(tmp_path: Path, busybox_image: Path) -> AsyncIterator[Zones]:
    async with serving(tmp_path, busybox_image, timeouts={"call": "10s"}) as zones:
        await asyncio.gather(zones.create_zone("evil"), zones.create_zone("z1"))
        yield zones


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[SilentServer]:
    with SilentServer(tmp_path / "silent") as server:
        yield server


async def run(zones: Zones, path: Path, zone: str = "evil", workload: str = "w1", **more: object) -> str:
    """A workload's view of the volume."""
    source = f"/run/xenpod/containers/{workload}/volumes/v"
    config = busybox.config(
        workload, ["/bin/sh", "-c", "ls /v/a"], mounts=[busybox.bind(source, "/v", "rbind", "ro")]
    )
    values: dict[str, object] = {"volume": "v", "keep_current": True}
    volume = pb.FileVolume(name="v", host_path=str(path), **(values | more))  # type: ignore[arg-type]
    await zones.create([], workload, zone_id=zone, oci_config=config, file_volumes=[volume])
    await zones.start(workload)
    await zones.wait(workload)
    await zones.delete(workload)
    return zones.log(workload).read_text()


def resident(zones: Zones) -> int:
    """Peak of protectd's memory, in bytes."""
    process = zones.protectd.daemon.process
    assert process is not None
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024


async def test_a_volume_of_very_many_and_very_large_files(zones: Zones, tmp_path: Path) -> None:
    """The volume is shared as soon as its size is seen, and costs protectd nothing."""
    files = AtomicFiles(tmp_path / "many")
    files.write({"a": ""})
    version = files.path / "..data"
    for number in range(MANY):
        (version / f"f{number}").touch()
    large = AtomicFiles(tmp_path / "large")
    large.write({"a": ""})
    with (large.path / "..data/sparse").open("wb") as file:
        file.truncate(1 << 40)
    before = resident(zones)
    for made in (files, large):
        assert "/v/a" in await run(zones, made.path)
    assert resident(zones) - before < 16 * MIB


async def test_growing_file_fails_or_is_read_within_bounds(zones: Zones, tmp_path: Path) -> None:
    path, ended = tmp_path / "etc-hosts", threading.Event()
    path.touch()

    def grow() -> None:
        with path.open("a", buffering=1) as file:
            while not ended.is_set():
                file.write("10.0.0.1 more\n")

    growing = threading.Thread(target=grow)
    growing.start()
    before = resident(zones)
    try:
        for number in range(3):
            try:
                await run(zones, path, workload=f"w{number}", writable=True)
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.FAILED_PRECONDITION, error.details()
                assert "change all the time" in (error.details() or "")
        assert resident(zones) - before < 32 * MIB
    finally:
        ended.set()
        growing.join()


async def test_pipe_with_a_kubelets_file_name_is_refused(zones: Zones, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "etc-hosts")
    async with failing(grpc.StatusCode.FAILED_PRECONDITION) as said:
        await run(zones, tmp_path / "etc-hosts")
    assert "a pipe of the host" in said[0]


async def test_silent_server_delays_its_own_zone_alone(
    zones: Zones, silent: SilentServer, tmp_path: Path
) -> None:
    files = AtomicFiles(tmp_path / "fine")
    files.write({"a": ""})

    async def evil(number: int) -> None:
        async with failing(grpc.StatusCode.DEADLINE_EXCEEDED):
            await run(zones, silent.path / "x/pods/u/etc-hosts", workload=f"evil{number}")

    waiting = [asyncio.ensure_future(evil(number)) for number in range(20)]
    assert "/v/a" in await run(zones, files.path, "z1", "honest")
    assert not any(each.done() for each in waiting)
    await asyncio.gather(*waiting)
