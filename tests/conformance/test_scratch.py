"""Scratch disks: a pod's files are on the host's disk, within limits, and not in the zone's memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.cri.conformance import SuiteStage, refused
from tests.support.cri.cri_daemons import needs_node
from tests.support.cri.events import PATIENCE
from tests.support.waiting import until
from tools.localnode.cri_client import Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="session")]
MIB = 1 << 20
STORAGE, EMPTY_DIRS = "xenpod.dev/ephemeral-storage", "xenpod.dev/empty-dirs"


@pytest_asyncio.fixture(loop_scope="session")
async def pod(stage: SuiteStage) -> AsyncIterator[Pod]:
    """A pod with a scratch disk, and limits for the container web and the volume cache."""
    notes = {STORAGE: "web=8Mi", EMPTY_DIRS: "cache=16Mi, other=1Gi"}
    pod = await stage.run_pod("scratch", handler="scratch", annotations=notes)
    try:
        yield pod
    finally:
        await stage.tidy()
        await stage.client.remove_pod(pod.id)
    assert not disk(stage, pod).exists()


def disk(stage: SuiteStage, pod: Pod) -> Path:
    return stage.node.protectd.folder / "state/scratch" / f"{pod.id}.img"


def empty_dir(tmp_path: Path, name: str) -> cri.Mount:
    volume = tmp_path / f"pods/1-2/volumes/kubernetes.io~empty-dir/{name}"
    volume.mkdir(parents=True, exist_ok=True)
    volume.chmod(0o777)
    return cri.Mount(host_path=str(volume), container_path=f"/{name}")


async def fill(stage: SuiteStage, container: str, path: str) -> int:
    """Write until the disk is full: the written bytes."""
    code, said = await stage.says(container, f"dd if=/dev/zero of={path} bs=65536")
    assert code != 0 and "No space" in said, said
    return int(await stage.output(container, f"wc -c < {path}"))


async def layer(stage: SuiteStage, container: str) -> Any:
    request = cri.ContainerStatsRequest(container_id=container)
    return (await stage.runtime.ContainerStats(request, timeout=PATIENCE)).stats.writable_layer


async def test_writes_stop_at_limits_of_layer_and_empty_dir(
    stage: SuiteStage, pod: Pod, tmp_path: Path
) -> None:
    named: dict[str, Any] = {"metadata": cri.ContainerMetadata(name="web")}
    web = await stage.started(pod, mounts=[empty_dir(tmp_path, "cache")], **named)
    assert 7.6 * MIB <= await fill(stage, web, "/big") <= 8 * MIB
    assert 15.6 * MIB <= await fill(stage, web, "/cache/big") <= 16 * MIB
    assert 7.6 * MIB <= (await layer(stage, web)).used_bytes.value <= 8.3 * MIB
    beside = await stage.started(pod, mounts=[empty_dir(tmp_path, "cache"), empty_dir(tmp_path, "free")])
    assert await stage.output(beside, "rm /cache/big && echo x > /cache/a && cat /cache/a") == "x"
    await stage.output(beside, "dd if=/dev/zero of=/free/big bs=1M count=20 conv=fsync")


async def test_more_than_memory_and_back(stage: SuiteStage, pod: Pod) -> None:
    """On Xen the zone has less memory than the files; the host's disk has the files, and later the space."""
    container = await stage.started(pod)
    await stage.output(container, "dd if=/dev/zero of=/big bs=1M count=150 conv=fsync")
    file = disk(stage, pod)
    await until(lambda: file.stat().st_blocks * 512 >= 150 * MIB, PATIENCE)
    assert file.stat().st_size == 256 * MIB

    async def counted() -> bool:
        return bool((await layer(stage, container)).used_bytes.value >= 150 * MIB)

    await until(counted, PATIENCE)
    assert await fill(stage, container, "/more") < 106 * MIB
    await stage.output(container, "rm /more /big && echo fine > /a && cat /a")
    await until(lambda: file.stat().st_blocks * 512 < 64 * MIB, PATIENCE)


async def test_wrong_scratch_annotations_are_refused(stage: SuiteStage) -> None:
    for value in ("web", "web=", "web=8Mi,web=1Mi", "web=-1", "We b=1Mi", "=1Mi", "a=1Mi," * 300):
        with refused("INVALID_ARGUMENT", EMPTY_DIRS):
            await stage.run_pod("wrong", handler="scratch", annotations={EMPTY_DIRS: value})
    with refused("PERMISSION_DENIED", STORAGE):
        await stage.run_pod("wrong", annotations={STORAGE: "web=1Mi"})
