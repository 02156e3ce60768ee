"""User namespaces and image volumes over protect.v1: who owns what, in the zone and on the host."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import grpc
import pytest

from tests.support.images import busybox
from tests.support.images.volume_image import volume_squashfs
from tests.support.protect.disk_source import DiskSource
from tests.support.protect.zones import Zones, failing, needs_protectd, stack
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, needs_protectd, pytest.mark.asyncio(loop_scope="module")]
Code = grpc.StatusCode
FIRST, LENGTH = 300_000, 65_536
MAPPING = pb.IdMapping(host_id=FIRST, length=LENGTH)


@pytest.fixture
def zones(shared_zones: Zones) -> Zones:
    return shared_zones


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An image of this test alone: loop devices on the image are this test's."""
    folder = tmp_path / "model"
    folder.mkdir()
    return volume_squashfs(folder)


async def started(
    zones: Zones, *mounts: dict[str, object], workload: str = "w1", mapped: bool = True, **more: object
) -> None:
    ids = (FIRST, LENGTH) if mapped else ()
    config = busybox.config(workload, ["/bin/sleep", "1000"], mounts=mounts, ids=ids)
    await zones.run(workload_id=workload, oci_config=config, **more)


async def sh(zones: Zones, script: str, workload: str = "w1") -> str:
    stdout, stderr, _ = await zones.exec("/bin/sh", "-c", script, workload_id=workload)
    return (stdout + stderr).decode()


async def test_ids_of_a_volume_are_the_pod_s(zones: Zones, source: DiskSource) -> None:
    """Root of the pod is root of the volume, and nobody else; without a mapping the files are nobody's."""
    (source.path / "theirs").write_text("")
    os.chown(source.path / "theirs", 1000, 100)
    (source.path / "plain").mkdir()
    await zones.create_zone(id_mapping=MAPPING)
    volumes = [
        pb.Volume(name="0", host_path=str(source.path), map_ids=True),
        pb.Volume(name="1", host_path=str(source.path / "plain")),
    ]
    binds = [
        busybox.bind(f"/run/xenpod/shared/w1/{name}", f"/v{name}", "rbind", "rprivate", "rw") for name in "01"
    ]
    await started(zones, *binds, volumes=volumes)
    look = "cat /proc/self/uid_map; stat -c '%u %g' /v0 /v0/theirs /v1"
    script = f"{look}; echo x >/v0/mine; mkdir /v0/d; touch /v1/no"
    lines = (await sh(zones, script)).splitlines()
    assert lines[0].split() == ["0", str(FIRST), str(LENGTH)]
    assert lines[1:4] == ["0 0", "1000 100", "65534 65534"]
    assert "Permission denied" in lines[4]
    for name in ("mine", "d"):
        made = (source.path / name).stat()
        assert (made.st_uid, made.st_gid) == (0, 0)
    await zones.delete()
    await source.freed()


async def test_volume_without_support_for_mapped_ids_is_refused(zones: Zones, tmp_path: Path) -> None:
    await zones.create_zone(id_mapping=MAPPING)
    await zones.create_zone("z2")
    place = tmp_path / "ram"
    place.mkdir()
    subprocess.run(["mount", "-t", "ramfs", "xenpod-test", str(place)], check=True)
    try:
        volume = pb.Volume(name="0", host_path=str(place), map_ids=True)
        async with failing(Code.FAILED_PRECONDITION) as said:
            await zones.create(["/bin/true"], volumes=[volume])
        assert "cannot be mounted with mapped ids" in said[0] and str(place) in said[0]
        async with failing(Code.FAILED_PRECONDITION) as said:
            await zones.create(["/bin/true"], zone_id="z2", volumes=[volume])
        assert "no user namespace" in said[0]
    finally:
        subprocess.run(["umount", str(place)], check=True)


async def test_image_volumes_are_readonly_and_share_a_disk_per_workload(zones: Zones, model: Path) -> None:
    """With and without a user namespace; the same image in two containers; the disks go with them."""
    await zones.create_zone(id_mapping=MAPPING)
    await zones.create_zone("z2")
    for workload, zone, mapped in (("w1", "z1", True), ("w2", "z1", True), ("w3", "z2", False)):
        base = f"/run/xenpod/containers/{workload}/volumes"
        binds = [busybox.bind(f"{base}/{name}", f"/{name}", "rbind", "ro") for name in ("whole", "part")]
        volumes = [
            pb.ImageVolume(name="whole", filesystems=stack(model)),
            pb.ImageVolume(name="part", filesystems=stack(model), sub_path="absolute"),
        ]
        await started(zones, *binds, workload=workload, zone_id=zone, mapped=mapped, image_volumes=volumes)
        script = "cat /whole/data/file /part/er; stat -c %u /whole; echo x >/whole/new"
        said = await sh(zones, script, workload)
        assert said.startswith("a file\ndeeper\n0\n") and "Read-only file system" in said
    await zones.delete("w1")
    assert await sh(zones, "cat /part/er", "w2") == "deeper\n"
    # A disk for each workload and image, independent of the number of uses there.
    attached = subprocess.run(["losetup", "-j", str(model)], check=True, capture_output=True, text=True)
    assert len(attached.stdout.splitlines()) == 2


async def test_impossible_image_volumes_are_refused(zones: Zones, model: Path, tmp_path: Path) -> None:
    await zones.create_zone()

    def volume(**fields: object) -> pb.ImageVolume:
        return pb.ImageVolume(**{"name": "v", "filesystems": stack(model)} | fields)  # type: ignore[arg-type]

    for code, volumes, words in (
        (Code.FAILED_PRECONDITION, [volume(sub_path="nothing")], "no such path"),
        (Code.FAILED_PRECONDITION, [volume(sub_path="fifo")], "neither a directory nor a file"),
        (Code.INVALID_ARGUMENT, [volume(sub_path="../etc")], "relative path"),
        (Code.INVALID_ARGUMENT, [volume(sub_path="/etc")], "relative path"),
        (Code.INVALID_ARGUMENT, [volume(name="a/b")], "volume id"),
        (Code.INVALID_ARGUMENT, [volume(filesystems=stack(model, type="ext4"))], "ext4"),
        (Code.INVALID_ARGUMENT, [volume(filesystems=stack(tmp_path / "none"))], "no image file"),
        (Code.INVALID_ARGUMENT, [volume(), volume()], "two image volumes"),
        (Code.INVALID_ARGUMENT, [volume(name=f"v{n}") for n in range(33)], "33"),
    ):
        async with failing(code) as said:
            await zones.create(["/bin/true"], image_volumes=volumes)
        assert words in said[0]
    listed = await zones.clients.workloads.ListWorkloads(pb.ListWorkloadsRequest())
    assert not listed.workloads
    await zones.run("/bin/true", image_volumes=[volume()])
    assert (await zones.wait()).exit_code == 0


@pytest.mark.parametrize("mapping", [(0, 0), (2**32 - 1, 1), (5, 2**32 - 5)])
async def test_invalid_mappings_are_refused(zones: Zones, mapping: tuple[int, int]) -> None:
    async with failing(Code.INVALID_ARGUMENT) as said:
        await zones.create_zone(id_mapping=pb.IdMapping(host_id=mapping[0], length=mapping[1]))
    assert "id mapping" in said[0]


async def test_a_user_namespace_outlives_the_daemon(zones: Zones, source: DiskSource) -> None:
    await zones.create_zone(id_mapping=MAPPING)
    await started(zones)
    await zones.protectd.daemon.stop()
    await zones.protectd.daemon.start()
    await zones.clients.zones.ListZones(pb.ListZonesRequest(), wait_for_ready=True)
    volume = pb.Volume(name="0", host_path=str(source.path), map_ids=True)
    bind = busybox.bind("/run/xenpod/shared/w2/0", "/v0", "rbind", "rprivate", "rw")
    await started(zones, bind, workload="w2", volumes=[volume])
    assert await sh(zones, "touch /v0/x && stat -c %u /v0/x", "w2") == "0\n"
    await zones.delete("w2")
    assert (source.path / "x").stat().st_uid == 0
