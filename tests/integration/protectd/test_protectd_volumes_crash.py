"""SIGKILL of protectd at each step of volumes: nothing of the volumes stays behind."""

from __future__ import annotations

import os

import pytest

from tests.support.images import busybox
from tests.support.protect import leftovers
from tests.support.protect.crashes import armed, connected, killed, workloads
from tests.support.protect.disk_source import DiskSource
from tests.support.protect.zones import Zones, needs_protectd
from tests.support.session.checkpoints import killed_at
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, pytest.mark.slow, needs_protectd]


async def create(zones: Zones, source: DiskSource, script: str = "cat /v0/a /v2/a; exec sleep 100") -> None:
    (source.path / "a").write_text("there\n")
    names = ["0", "1", "2"]
    binds = [
        busybox.bind(f"/run/xenpod/shared/w1/{name}", f"/v{name}", "rbind", "rprivate") for name in names
    ]
    config = busybox.config("w1", ["/bin/sh", "-c", script], mounts=binds)
    volumes = [pb.Volume(name=name, host_path=str(source.path)) for name in names]
    await zones.create([], oci_config=config, volumes=volumes)


def places(zones: Zones, zone: str = "z1") -> list[str]:
    return os.listdir(zones.protectd.run_dir / "volumes" / zone / "places")


@killed_at(
    [
        "workload-create.recorded",
        "volumes.attached:1",
        "volumes.attached:3",
        "workload-create.volumes-attached",
        "sharing.served",
        "sharing.mounted",
        "workload-create.prepared",
        "workload-create.created",
    ],
)
async def test_killed_create_leaves_no_volume_behind(zones: Zones, source: DiskSource, step: str) -> None:
    await zones.create_zone()
    await armed(zones, step)
    await killed(zones, create(zones, source))
    await connected(zones)
    if "w1" not in await workloads(zones):
        # The undo may still be in flight: a delete waits for the undo, and finds nothing to do.
        await zones.delete()
        assert places(zones) == []
        await create(zones, source)
    await zones.start()
    stdout, _, _ = await zones.exec("/bin/cat", "/v0/a", "/v1/a", "/v2/a")
    assert stdout == b"there\n" * 3
    await zones.delete()
    assert places(zones) == []
    await source.freed()


@killed_at(["workload-exit.drained", "volumes.detached", "workload-exit.released", "workload-exit.recorded"])
async def test_killed_exit_frees_the_volumes(zones: Zones, source: DiskSource, step: str) -> None:
    await zones.create_zone()
    await armed(zones, step)
    await create(zones, source, "exit 3")
    await killed(zones, zones.start())
    assert (await zones.wait()).exit_code == 3
    assert places(zones) == []
    await source.freed()


@killed_at(["workload-delete.ended", "workload-delete.disk-detached", "workload-delete.volumes-detached"])
async def test_unstarted_workload_is_deleted_despite_a_kill(
    zones: Zones, source: DiskSource, step: str
) -> None:
    await zones.create_zone()
    await create(zones, source)
    await armed(zones, step)
    await killed(zones, zones.delete())
    await connected(zones)
    await zones.delete()
    assert places(zones) == []
    await source.freed()


@killed_at(["volumes.area-made", "zone-create.sharing", "zone-create.domain-created"])
async def test_killed_zone_create_leaves_no_volume_area(zones: Zones, source: DiskSource, step: str) -> None:
    await armed(zones, step)
    await killed(zones, zones.create_zone())
    await connected(zones)
    await zones.destroy_zone()
    assert not leftovers.mounts(zones.protectd.run_dir)
    assert not (zones.protectd.run_dir / "volumes/z1").exists()
    await zones.create_zone()
    await create(zones, source)
    await zones.destroy_zone()
    await source.freed()


@killed_at(
    [
        "zone-destroy.quiet",
        "zone-destroy.domain-destroyed",
        "volumes.area-removed",
        "zone-destroy.volumes-removed",
        "zone-destroy.files-removed",
    ],
)
async def test_killed_zone_destroy_leaves_no_mount(zones: Zones, source: DiskSource, step: str) -> None:
    await zones.create_zone()
    await create(zones, source)
    await zones.start()
    await armed(zones, step)
    await killed(zones, zones.destroy_zone())
    await connected(zones)
    await zones.destroy_zone()
    assert not leftovers.mounts(zones.protectd.run_dir)
    await source.freed()


async def test_zone_end_during_an_outage_of_protectd(zones: Zones, source: DiskSource) -> None:
    zone = await zones.create_zone()
    await create(zones, source)
    await zones.start()
    await zones.protectd.daemon.crash()
    os.kill(zone.domain_id, 9)
    await zones.protectd.daemon.start()
    assert (await zones.wait()).reason == "ZoneDestroyed"
    await source.freed()
