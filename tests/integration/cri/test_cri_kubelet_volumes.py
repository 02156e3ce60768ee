"""Volumes as a kubelet makes them, in the zone: what containers see, and what the host has of it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from localnode.client import Pod
from tests.support.cri.cri_daemons import needs_node
from tests.support.cri.cri_watch import Watched, watched
from tests.support.cri.kubelet_files import PodFiles, pod_files
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Watched]:
    async with watched(tmp_path) as made:
        yield made


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[PodFiles]:
    with pod_files(tmp_path / "kubelet") as made:
        yield made


def mount(place: str, path: Path, *, readonly: bool = False) -> cri.Mount:
    return cri.Mount(container_path=place, host_path=str(path), readonly=readonly)


async def started(
    stage: Watched, pod: Pod, name: str, mounts: Sequence[cri.Mount], script: str = "sleep 600"
) -> str:
    container = await stage.client.create(pod, stage.image, ["sh", "-c", script], name, mounts)
    await stage.client.start(container)
    return container


def shared(stage: Watched, pod: Pod) -> list[str]:
    """What protectd shares with the pod's zone."""
    places = stage.node.protectd.run_dir / "volumes" / pod.id / "places"
    return sorted(str(path.relative_to(places)) for path in places.rglob("*"))


async def test_an_empty_dir_on_disk(stage: Watched, kubelet: PodFiles) -> None:
    """One for all containers, with the kubelet's mode, and nothing of it on the host."""
    path = kubelet.empty_dir("scratch", 0o2775)
    os.chown(path, 0, 7)
    part = kubelet.sub_path(path, "a/b", "second")
    pod = await stage.client.run_pod("web")
    first = await started(stage, pod, "first", [mount("/v", path)])
    assert await stage.output(first, "ls -ldn /v | cut -d' ' -f1; stat -c %g /v") == "drwxrwsr-x\n7"
    await stage.output(first, "echo kept > /v/file; mkdir -p /v/a/b; echo deep > /v/a/b/c")
    second = await started(stage, pod, "second", [mount("/w", path), mount("/p", part, readonly=True)])
    assert await stage.output(second, "cat /w/file /p/c; touch /p/x || echo read-only") == (
        "kept\ndeep\nread-only"
    )
    await stage.client.remove_container(first)
    third = await started(stage, pod, "first", [mount("/v", path)])
    assert await stage.output(third, "cat /v/file") == "kept", "it outlives its containers"
    assert os.listdir(path) == ["a"] and os.listdir(path / "a/b") == [], "what the kubelet made for a subPath"
    assert shared(stage, pod) == []
    reply = await stage.client.exec(third, "sh", "-c", "dd if=/dev/zero of=/v/full bs=1M count=1024")
    assert reply.exit_code != 0 and b"No space left" in reply.stderr


async def test_an_empty_dir_of_a_handler_that_wants_them_on_the_host(
    stage: Watched, kubelet: PodFiles
) -> None:
    """A pod keeps to what was so when it was made: its containers would not see the same otherwise."""
    path = kubelet.empty_dir("scratch")
    before = await stage.client.run_pod("before")
    await started(stage, before, "first", [mount("/v", path)], "echo zone > /v/file; sleep 600")
    await stage.node.daemon.stop()
    stage.node.configure(handlers={"xenpod": {"empty_dir": "host"}})
    await stage.node.daemon.start()
    async with stage.node.client() as client:
        stage.client = client
        pod = await client.run_pod("web")
        container = await started(stage, pod, "main", [mount("/v", path)])
        await stage.output(container, "echo host > /v/file")
        assert (path / "file").read_text() == "host\n" and shared(stage, pod) != []
        second = await started(stage, before, "second", [mount("/v", path)])
        assert await stage.output(second, "cat /v/file") == "zone"
