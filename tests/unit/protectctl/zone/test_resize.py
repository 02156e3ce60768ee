"""``protect zone resize``: its request, and its output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from daemonkit.rpc.server import serve_unix
from protectctl.__main__ import main
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc

MIB = 1 << 20


class Resizer(protect_pb2_grpc.ZonesServicer):
    """Resizes two zones, unless ``not_done`` has entries."""

    def __init__(self) -> None:
        self.asked: list[pb.ResizeZoneRequest] = []
        self.not_done: list[str] = []

    async def ListZones(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.ListZonesResponse(zones=[pb.Zone(id="abc1"), pb.Zone(id="xyz2")])

    async def ResizeZone(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.asked.append(request)
        resources = pb.ZoneResources(
            memory_bytes=512 * MIB, memory_max_bytes=1024 * MIB, vcpus=2, vcpus_max=2,
            memory_policy=pb.MEMORY_POLICY_DYNAMIC,
        )  # fmt: skip
        zone = pb.Zone(id=request.id, state=pb.ZONE_STATE_RUNNING, resources=resources, cpupool="guests")
        return pb.ResizeZoneResponse(zone=zone, not_done=self.not_done)


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Resizer]:
    resizer = Resizer()

    def add(server: grpc.aio.Server) -> None:
        protect_pb2_grpc.add_ZonesServicer_to_server(resizer, server)

    async with serve_unix(tmp_path / "protect.sock", add, name="test", grace=0.1):
        yield resizer


async def ran(folder: Path, *arguments: str) -> int:
    command = ["zone", "resize", *arguments, "--socket", str(folder / "protect.sock")]
    return await asyncio.to_thread(main, command)


async def test_resize_arguments_become_the_request(
    daemon: Resizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await ran(tmp_path, "ab", "--memory", "512MiB", "--vcpus", "2", "--cap", "0") == 0
    assert await ran(tmp_path, "xyz2", "--weight", "99", "--policy", "dynamic") == 0
    first, second = daemon.asked
    assert first == pb.ResizeZoneRequest(
        id="abc1", resources=pb.ZoneResources(memory_bytes=512 * MIB, vcpus=2, cap=0)
    )
    assert first.resources.HasField("cap") and not first.resources.HasField("weight")
    wanted = pb.ZoneResources(weight=99, memory_policy=pb.MEMORY_POLICY_DYNAMIC)
    assert second == pb.ResizeZoneRequest(id="xyz2", resources=wanted)
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "memory 512 MiB, at most 1024 MiB" in shown and "vcpus 2" in shown
    assert "memory policy dynamic" in shown and "cpu pool guests" in shown


async def test_refused_resize_is_an_error(
    daemon: Resizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.not_done = ["memory: 9 MiB wanted, \x1bthe zone can go down to 99 MiB", "vCPUs: 9 wanted"]
    assert await ran(tmp_path, "abc1", "--memory", "9MiB", "--vcpus", "9") == 1
    out, error = capsys.readouterr()
    assert not out and "stays as it was" in error and "99 MiB; vCPUs: 9 wanted" in error
    assert "\x1b" not in error


@pytest.mark.parametrize(
    "wrong", [("--memory", "lots"), ("--vcpus", "0"), ("--weight", "-1"), ("--policy", "x")]
)
async def test_wrong_sizes_are_wrong_usage(tmp_path: Path, wrong: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as raised:
        await ran(tmp_path, "abc1", *wrong)
    assert raised.value.code == 2
