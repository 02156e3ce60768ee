"""File servers of a zone's volumes, by protect.v1: their start on request, and the effects of their end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from tests.support.images import busybox
from tests.support.protect.zones import Zones, failing, needs_protectd, serving
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, needs_protectd]

LOST = "the file server of its volumes ended: injected fault"


def dies(after_ms: int, **more: object) -> dict[str, object]:
    """The directory's server reports its end long after its start."""
    return {"toolstack": {"fault": [{"at": "share", "kind": "die", "after_ms": after_ms, **more}]}}


async def sleeping(zones: Zones, workload: str, *volumes: pb.Volume, start: bool = True) -> None:
    binds = [
        busybox.bind(f"/run/xenpod/shared/{workload}/{each.name}", f"/v{each.name}", "rbind", "rw")
        for each in volumes
    ]
    config = busybox.config(workload, ["/bin/sleep", "1000"], mounts=binds)
    await zones.create((), workload_id=workload, oci_config=config, volumes=volumes)
    if start:
        await zones.start(workload)


async def test_end_of_the_file_server_ends_workloads_with_volumes_and_says_why(
    tmp_path: Path, busybox_image: Path
) -> None:
    async with serving(tmp_path, busybox_image, faults=dies(2000)) as zones:
        await zones.create_zone()
        volume = pb.Volume(name="0", host_path=str(tmp_path))
        await sleeping(zones, "plain")
        await sleeping(zones, "created", volume, start=False)
        await sleeping(zones, "running", volume)
        ended = await zones.wait("running")
        assert (ended.exit_code, ended.reason, ended.message) == (137, "VolumesLost", LOST)
        async with failing(grpc.StatusCode.FAILED_PRECONDITION) as said:
            await zones.start("created")
        assert LOST in said[0]
        assert (await zones.get("plain")).state == pb.WORKLOAD_STATE_RUNNING
        # The next server has another session.
        await sleeping(zones, "next", volume)
        assert (await zones.get("next")).state == pb.WORKLOAD_STATE_RUNNING


async def test_failed_file_server_fails_its_workload_alone(tmp_path: Path, busybox_image: Path) -> None:
    faults = {"toolstack": {"fault": [{"at": "share", "kind": "fail"}]}}
    async with serving(tmp_path, busybox_image, faults=faults) as zones:
        await zones.create_zone()
        volume = pb.Volume(name="0", host_path=str(tmp_path))
        await sleeping(zones, "plain")
        async with failing(grpc.StatusCode.INTERNAL) as said:
            await sleeping(zones, "one", volume)
        assert "injected fault" in said[0]
        await asyncio.gather(sleeping(zones, "two", volume), sleeping(zones, "three", volume))
