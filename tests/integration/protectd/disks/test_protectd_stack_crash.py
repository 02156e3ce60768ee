"""SIGKILL of protectd while a workload with a stack is made or deleted, beside another workload."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.images import layered_image
from tests.support.protect import leftovers
from tests.support.protect.crashes import armed, connected, killed, once_undone, steps, workloads
from tests.support.protect.zones import Zones, needs_protectd, serving, stack
from tests.support.session.checkpoints import killed_at
from tests.support.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.slow, needs_protectd]
DISKS = 3
"""Of a stack of three, without the shared disk: number of passes of the steps of a disk."""


def each_disk(names: list[str]) -> list[str]:
    return [
        step
        for name in names
        for step in ([f"{name}:{n + 1}" for n in range(DISKS)] if "disk-" in name else [name])
    ]


@pytest.fixture
async def zones(tmp_path: Path, busybox_image: Path) -> AsyncIterator[Zones]:
    """A protectd with a workload whose root is the other's lowest file system."""
    async with serving(tmp_path, busybox_image) as zones:
        await zones.create_zone()
        await zones.run("/bin/sleep", "1000", workload_id="w0")
        yield zones


@pytest.fixture
def layers(tmp_path: Path) -> list[Path]:
    return [layered_image.lowest(tmp_path), *layered_image.upper_two(tmp_path)]


async def create(zones: Zones, layers: list[Path]) -> None:
    script = f"cd /; {layered_image.LISTING} sleep 1000"
    await zones.create(["/bin/sh", "-c", script], filesystems=stack(zones.image, *layers))


async def works(zones: Zones) -> None:
    """Check that each workload sees its stack."""
    await zones.start()
    listing = f"cd /; {layered_image.LISTING}"
    assert (await zones.exec("/bin/sh", "-c", listing))[0].decode() == layered_image.SHOWN
    assert (await zones.exec("/bin/ls", "/", workload_id="w0"))[2] == 0
    assert len(leftovers.loops(zones.folder)) == 1 + DISKS


async def only_the_other(zones: Zones) -> None:
    await until(lambda: len(leftovers.loops(zones.folder)) == 1)
    assert list(await workloads(zones)) == ["w0"]
    assert (await zones.exec("/bin/echo", "here", workload_id="w0"))[0] == b"here\n"


@killed_at(each_disk(steps("workload-create")))
async def test_killed_create_is_complete_or_undone_with_its_disks(
    zones: Zones, layers: list[Path], step: str
) -> None:
    await armed(zones, step)
    await killed(zones, create(zones, layers))
    await connected(zones)
    if "w1" in await workloads(zones):
        assert step == "workload-create.created"
    else:
        await only_the_other(zones)
        await once_undone(lambda: create(zones, layers))
    await works(zones)
    await zones.delete()
    await only_the_other(zones)


@killed_at(each_disk(steps("workload-delete")))
async def test_killed_delete_is_completed_by_the_next_delete(
    zones: Zones, layers: list[Path], step: str
) -> None:
    await create(zones, layers)
    await works(zones)
    await armed(zones, step)
    await killed(zones, zones.delete())
    await connected(zones)
    await zones.delete()
    await only_the_other(zones)
    await create(zones, layers)
    await works(zones)


async def test_shared_disks_stay_when_the_other_workload_goes_after_a_restart(
    zones: Zones, layers: list[Path]
) -> None:
    """After a restart protectd still knows the holders of each disk."""
    await create(zones, layers)
    await zones.protectd.daemon.stop()
    await zones.protectd.daemon.start()
    await connected(zones)
    await zones.delete("w0")
    assert len(leftovers.loops(zones.folder)) == 1 + DISKS
    await zones.start()
    assert (await zones.exec("/bin/cat", "/kept"))[0] == b"lowest\n"
    await zones.delete()
    await until(lambda: not leftovers.loops(zones.folder))
