"""Workloads whose images are stacks, in real zones: their view, their shared disks, and their remains."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest
import pytest_asyncio
from grpc import StatusCode as Code

from tests.support.images import busybox, layered_image
from tests.support.protect import leftovers
from tests.support.protect.zones import Zones, failing, needs_protectd, stack
from tests.support.waiting import until
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, needs_protectd, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module")
async def zones(shared_zones: Zones) -> Zones:
    await shared_zones.create_zone()
    return shared_zones


@pytest.fixture
def layers(module_zones: Zones) -> list[Path]:
    """Layers of this test alone, in the folder whose loop devices count."""
    folder = Path(tempfile.mkdtemp(dir=module_zones.folder))
    return [layered_image.lowest(folder), *layered_image.upper_two(folder)]


def attached(zones: Zones) -> int:
    return len(leftovers.loops(zones.folder))


async def test_workloads_of_the_same_layers_share_disks_until_the_last_end(
    zones: Zones, layers: list[Path]
) -> None:
    """A root and a volume of the same layers, in two workloads: four disks, until the last one goes."""
    for workload in ("w1", "w2"):
        bind = busybox.bind(f"/run/xenpod/containers/{workload}/volumes/v", "/v", "rbind", "ro")
        script = f"cd /; {layered_image.LISTING} cd /v; {layered_image.LISTING}"
        await zones.run(
            workload_id=workload,
            filesystems=stack(zones.image, *layers),
            image_volumes=[pb.ImageVolume(name="v", filesystems=stack(*layers))],
            oci_config=busybox.config(workload, ["/bin/sh", "-c", script], mounts=[bind]),
        )
        assert (await zones.wait(workload)).exit_code == 0
        assert zones.lines(workload) == [f"stdout F {line}" for line in layered_image.SHOWN.splitlines() * 2]
        assert attached(zones) == 4
    await zones.delete("w1")
    assert attached(zones) == 4
    await zones.run("/bin/echo", "still", workload_id="w3", filesystems=stack(zones.image, layers[1]))
    await zones.delete("w2")
    await until(lambda: attached(zones) == 2)
    await zones.delete("w3")
    await until(lambda: attached(zones) == 0)


async def test_concurrent_workloads_leave_no_disk(zones: Zones, layers: list[Path]) -> None:
    async def one(number: int) -> None:
        name = f"w{number}"
        filesystems = stack(zones.image, *layers[: number % 4])
        await zones.run("/bin/echo", "hello", workload_id=name, filesystems=filesystems)
        assert (await zones.wait(name)).exit_code == 0
        await zones.delete(name)

    for _ in range(2):
        await asyncio.gather(*(one(number) for number in range(6)))
    await until(lambda: attached(zones) == 0)


async def test_ten_workloads_of_eight_disks_each(zones: Zones, layers: list[Path]) -> None:
    """The maximum of a zone; a further disk is refused."""
    own = [Path(shutil.copy(layers[0], zones.folder / f"own{number}")) for number in range(71)]
    images = [Path(shutil.copy(zones.image, zones.folder / f"busybox{number}")) for number in range(10)]
    for number, image in enumerate(images):
        filesystems = stack(image, *own[7 * number : 7 * number + 7])
        await zones.create(["/bin/cat", "/kept"], f"w{number}", filesystems=filesystems)
    assert attached(zones) == 80
    async with failing(Code.RESOURCE_EXHAUSTED) as said:
        await zones.create(["/bin/true"], "more", filesystems=stack(images[0], own[70]))
    assert "zone z1 has 80 disks, 1 more would be more than 80" in said[0]
    await zones.create(["/bin/true"], "more", filesystems=stack(images[0], own[69]))
    await asyncio.gather(*(zones.start(f"w{number}") for number in range(10)))
    for number in range(10):
        assert (await zones.wait(f"w{number}")).exit_code == 0
        assert zones.lines(f"w{number}") == ["stdout F lowest"]
    await asyncio.gather(*(zones.delete(name) for name in ("more", *(f"w{number}" for number in range(10)))))
    await until(lambda: attached(zones) == 0)


@pytest.mark.parametrize("kind", ["fail", "half"])
@pytest.mark.parametrize("skip", [0, 2])
async def test_failed_attach_leaves_no_disk_of_its_workload(
    zones: Zones, layers: list[Path], kind: str, skip: int
) -> None:
    """The workload's other disks are detached; another workload's disk stays."""
    await zones.run("/bin/sleep", "1000", workload_id="w0")
    await zones.protectd.daemon.stop()
    fault = {"at": "attach_disk", "kind": kind, "skip": skip}
    zones.protectd.configure(faults={"toolstack": {"fault": [fault]}})
    await zones.protectd.daemon.start()
    async with failing(Code.INTERNAL):
        await zones.create(["/bin/true"], filesystems=stack(zones.image, *layers))
    assert attached(zones) == 1
    await zones.run("/bin/cat", "/kept", "/tree/top", filesystems=stack(zones.image, *layers))
    assert (await zones.wait()).exit_code == 0
    assert attached(zones) == 4
    assert (await zones.exec("/bin/echo", "here", workload_id="w0"))[0] == b"here\n"


async def test_invalid_stacks_are_refused(zones: Zones, layers: list[Path]) -> None:
    again = zones.folder / "again"
    again.hardlink_to(layers[0])
    corrupt = zones.folder / "corrupt"
    corrupt.write_bytes(bytes(4096))
    for code, words, filesystems in (
        (Code.INVALID_ARGUMENT, "0 file systems are not 1 to 8", []),
        (Code.INVALID_ARGUMENT, "9 file systems are not 1 to 8", stack(*[zones.image] * 9)),
        (Code.INVALID_ARGUMENT, "in one stack twice", stack(zones.image, layers[0], layers[1], layers[0])),
        (Code.INVALID_ARGUMENT, "in one stack twice", stack(zones.image, layers[0], again)),
        (Code.INVALID_ARGUMENT, "no image file", stack(zones.image, zones.folder / "none")),
        (Code.INVALID_ARGUMENT, "no image file", stack(zones.image, zones.folder)),
        (Code.INVALID_ARGUMENT, "'ext4'", stack(zones.image) + stack(layers[0], type="ext4")),
        (Code.INTERNAL, "mount: /dev/xvdb", stack(zones.image, corrupt, layers[0])),
    ):
        async with failing(code) as said:
            await zones.create(["/bin/true"], filesystems=filesystems)
        assert words in said[0]
        if filesystems:
            async with failing(code) as said:
                volume = pb.ImageVolume(name="v", filesystems=filesystems)
                await zones.create(["/bin/true"], image_volumes=[volume])
            assert words in said[0]
    await until(lambda: attached(zones) == 0)
