"""``protect reservation``, over protectd's own services."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from protectctl.__main__ import main
from protectctl.command_errors import CommandFailed
from protectctl.host.reservations import size
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.served import served
from xenpod_proto.protect.v1 import reservations_pb2 as pb

MIB = 1 << 20


async def test_reservations_are_made_shown_and_removed(
    tmp_path: Path, toolstack: MemoryToolstack, capsys: pytest.CaptureFixture[str]
) -> None:
    async def protect(*words: str) -> str:
        socket = ["--socket", str(tmp_path / "protect.sock")]
        status = await asyncio.to_thread(main, ["reservation", *words, *socket])
        said = capsys.readouterr()
        return said.out if status == 0 else f"{status}: {said.err}"

    toolstack.overhead = 8 * MIB
    async with served(tmp_path, toolstack) as node:
        await protect("make", "claim-a", "512Mi", "--vcpus", "2", "--pod", "pod-1")
        await protect("make", "claim-b", "64Mi")
        await protect("bind", "claim-b", "pod-2")
        await node.create_zone("zone-1", pod_uid="pod-1")
        heads, first, second = (await protect("list")).splitlines()
        assert heads.split() == ["RESERVATION", "CLAIM", "MEMORY", "OVERHEAD", "VCPUS", "PODS", "ZONE", "AGE"]
        assert first.split()[:8] == ["claim-a", "512", "MiB", "8", "MiB", "2", "pod-1", "zone-1"]
        assert second.split()[:6] == ["claim-b", "64", "MiB", "8", "MiB", "pod-2"]
        found = json.loads(await protect("list", "--output", "json"))["reservations"]
        assert [one["pod_uids"] for one in found] == [["pod-1"], ["pod-2"]]
        assert "1: protect: " in (refused := await protect("make", "claim-c", "1Ti"))
        assert "it needs 1048584 MiB" in refused
        assert await protect("release", "claim-a", "claim-b", "nobody") == ""
        assert (await protect("list")).split("\n", 1)[1].strip() == ""
        await node.clients.reservations.MakeReservation(
            pb.MakeReservationRequest(id="uid-7", total_bytes=512 * MIB, claim="default/web-zone")
        )
        shown = (await protect("list")).splitlines()[1].split()
        assert shown[:6] == ["uid-7", "default/web-zone", "504", "MiB", "8", "MiB"]


def test_sizes_are_parsed_and_wrong_sizes_refused() -> None:
    assert [size(text) for text in ("512Mi", "1GiB", "7", "2Ki")] == [512 * MIB, 1024 * MIB, 7, 2048]
    for wrong in ("", "Mi", "-1", "1.5Gi", "1M", "9999999999999999Ti"):
        with pytest.raises(CommandFailed, match="is no size"):
            size(wrong)
