"""SIGKILL of protectd while a workload of several images is made or deleted, in a pod with user namespace."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.images import busybox
from tests.support.images.volume_image import volume_squashfs
from tests.support.protect.crashes import armed, connected, killed, workloads
from tests.support.protect.zones import Zones, needs_protectd, serving, stack
from tests.support.session.checkpoints import killed_at
from tests.support.waiting import until
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, pytest.mark.slow, needs_protectd]
FIRST, LENGTH = 400_000, 65_536


@pytest.fixture
async def zones(tmp_path: Path, busybox_image: Path) -> AsyncIterator[Zones]:
    async with serving(tmp_path, busybox_image) as zones:
        await zones.create_zone(id_mapping=pb.IdMapping(host_id=FIRST, length=LENGTH))
        yield zones


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "model"
    folder.mkdir()
    first = volume_squashfs(folder)
    return [first, Path(shutil.copy(first, tmp_path / "again.squashfs"))]


async def create(zones: Zones, models: list[Path]) -> None:
    volumes = [
        pb.ImageVolume(name=f"v{number}", filesystems=stack(model)) for number, model in enumerate(models)
    ]
    binds = [
        busybox.bind(f"/run/xenpod/containers/w1/volumes/{each.name}", f"/{each.name}", "rbind", "ro")
        for each in volumes
    ]
    config = busybox.config("w1", ["/bin/sleep", "100"], mounts=binds, ids=(FIRST, LENGTH))
    await zones.create([], oci_config=config, image_volumes=volumes)


def attached(models: list[Path]) -> list[str]:
    """The loop devices of the images."""
    commands = [["losetup", "-n", "-O", "NAME", "-j", str(model)] for model in models]
    done = [subprocess.run(command, check=True, capture_output=True, text=True) for command in commands]
    return [line for one in done for line in one.stdout.split()]


async def works(zones: Zones) -> None:
    await zones.start()
    stdout, _, code = await zones.exec("/bin/sh", "-c", "cat /v0/data/file /v1/data/file; stat -c %u /v0")
    assert (stdout, code) == (b"a file\na file\n0\n", 0)


@killed_at(
    [
        *(f"workload-create.disk-attached:{number}" for number in (1, 2, 3)),
        "workload-create.disks-attached",
        "workload-create.prepared",
        "workload-create.created",
    ],
)
async def test_killed_create_of_several_images_is_complete_or_undone(
    zones: Zones, models: list[Path], step: str
) -> None:
    await armed(zones, step)
    await killed(zones, create(zones, models))
    await connected(zones)
    if "w1" not in await workloads(zones):
        # The undo may still be in flight: a delete waits for the undo, and finds nothing to do.
        await zones.delete()
        await until(lambda: not attached(models))
        await create(zones, models)
    await works(zones)
    await zones.delete()
    await until(lambda: not attached(models))


@killed_at(
    [
        "workload-delete.container-deleted",
        *(f"workload-delete.disk-detached:{number}" for number in (1, 2, 3)),
    ],
)
async def test_killed_delete_detaches_all_disks_when_repeated(
    zones: Zones, models: list[Path], step: str
) -> None:
    await create(zones, models)
    await works(zones)
    assert len(attached(models)) == 2
    await armed(zones, step)
    await killed(zones, zones.delete())
    await connected(zones)
    await zones.delete()
    await until(lambda: not attached(models))
    await create(zones, models)
    await works(zones)
