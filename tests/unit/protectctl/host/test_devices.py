"""Output of ``protect device``, and its requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from daemonkit.faults import Refused
from daemonkit.rpc.server import serve_unix
from protectctl.__main__ import main
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc as rpc

BLOCK, PCI = pb.DEVICE_KIND_BLOCK, pb.DEVICE_KIND_PCI
ANSWER = pb.ListDevicesResponse(
    devices=[
        pb.Device(name="fast", kind=BLOCK, place="/dev/sdb", zone_id="abcd", disk="xvdb", attached=True),
        pb.Device(kind=BLOCK, place="/dev/sdc", zone_id="abcd", disk="xvdc", readonly=True),
        pb.Device(name="card", kind=PCI, place="0000:65:00.0", profiles=["gpu"], present=True),
        pb.Device(name="lost", kind=PCI, place="0000:66:00.0"),
    ]
)


class Devices(rpc.DevicesServicer, rpc.ZonesServicer):
    """Answers, and remembers its requests."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    async def ListZones(self, request: pb.ListZonesRequest, context: object) -> pb.ListZonesResponse:  # noqa: N802
        return pb.ListZonesResponse(zones=[pb.Zone(id="abcd"), pb.Zone(id="b123")])

    async def ListDevices(self, request: pb.ListDevicesRequest, context: object) -> pb.ListDevicesResponse:  # noqa: N802
        return ANSWER

    async def AttachDevice(self, request: pb.AttachDeviceRequest, context: object) -> pb.Device:  # noqa: N802
        self.asked.append(request)
        if request.device == "taken":
            raise Refused("attach device", "taken", "zone b123 has it")
        return ANSWER.devices[0]

    async def DetachDevice(self, request: pb.DetachDeviceRequest, context: object) -> pb.DetachDeviceResponse:  # noqa: N802
        self.asked.append(request)
        return pb.DetachDeviceResponse(confirmed=not request.force)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Devices, list[str]]]:
    devices = Devices()

    def add(server: grpc.aio.Server) -> None:
        rpc.add_DevicesServicer_to_server(devices, server)
        rpc.add_ZonesServicer_to_server(devices, server)

    async with serve_unix(tmp_path / "s", add, name="p", grace=0.1):
        yield devices, ["--socket", str(tmp_path / "s")]


async def run(*arguments: str) -> int:
    return await asyncio.to_thread(main, arguments)


async def test_devices_are_listed(
    served: tuple[Devices, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run("device", "list", *served[1]) == 0
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    shown = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert shown[0] == ["NAME", "PLACE", "KIND", "STATE", "ZONE", "DISK", "PROFILES"]
    assert shown[1] == ["fast", "/dev/sdb", "block", "attached", "abcd", "xvdb", "all"]
    assert shown[2] == ["/dev/sdc", "block, read-only", "changing", "abcd", "xvdc", "all"]
    assert shown[3] == ["card", "0000:65:00.0", "pci", "free", "gpu"]
    assert shown[4] == ["lost", "0000:66:00.0", "pci", "absent", "all"]
    assert await run("device", "list", *served[1], "--output", "json") == 0
    assert len(json.loads(capsys.readouterr().out)["devices"]) == 4


async def test_attach_and_detach_report_success_and_refusals(
    served: tuple[Devices, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    devices, to = served
    assert await run("device", "attach", "a", "fast", "--readonly", *to) == 0
    assert "/dev/xvdb" in capsys.readouterr().err
    assert await run("device", "detach", "ab", "/dev/sdb", *to) == 0
    assert devices.asked == [
        pb.AttachDeviceRequest(zone_id="abcd", device="fast", readonly=True),
        pb.DetachDeviceRequest(zone_id="abcd", device="/dev/sdb"),
    ]
    assert await run("device", "detach", "a", "fast", "--force", *to) == 1
    assert "the zone has not confirmed" in capsys.readouterr().err
    assert await run("device", "attach", "a", "taken", *to) == 1
    assert "zone b123 has it" in capsys.readouterr().err
