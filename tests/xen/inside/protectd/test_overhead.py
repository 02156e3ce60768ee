"""A zone's cost on a Xen host by ``protect host overhead``, compared with Xen's own figures."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.images import busybox
from tests.support.protect.zones import Zones
from tests.xen.inside.protectd.xen_zones import MEMORY, PATIENCE, nothing_left, on_xen

MIB = 1 << 20
COMMAND = (sys.executable, "-m", "protectctl", "host", "overhead", "--zones", "2", "--idle", "20")


@pytest.fixture
async def zones(tmp_path: Path) -> AsyncIterator[Zones]:
    image = busybox.build(tmp_path / "busybox.squashfs", tmp_path / "scratch")
    async with on_xen(tmp_path, image) as zones:
        yield zones


async def test_the_overhead_of_a_zone_is_measured(zones: Zones) -> None:
    """A PV zone without a disk or volume has no processes in dom0, but some of all other parts."""
    socket = ("--socket", str(zones.protectd.daemon.socket))
    asked = await asyncio.create_subprocess_exec(
        *COMMAND, *socket, "--output", "json", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    said, complaints = await asyncio.wait_for(asked.communicate(), PATIENCE)
    assert asked.returncode == 0, complaints.decode()
    found = json.loads(said)
    taken = {part["part"]: part["bytes"] for part in found["parts"]}
    assert 40 * MIB < taken["guest kernel and agent"] < MEMORY
    assert MIB < taken["hypervisor: page tables, its own pages"] < 16 * MIB
    assert sum(taken.values()) / MIB < int(found["podFixed"]["memory"].removesuffix("Mi")) < MEMORY / MIB + 32
    assert 0 < int(found["podFixed"]["cpu"].removesuffix("m")) < 1000
    await nothing_left(zones)
