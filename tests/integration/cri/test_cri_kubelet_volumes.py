"""A kubelet's volumes in the zone: the containers' view, and the host's view."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.cri.cri_daemons import container_status, in_step, needs_node
from tests.support.cri.kubelet_files import PodFiles, pod_files
from tests.support.cri.stage import Stage
from tools.localnode.cri_client import Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[PodFiles]:
    with pod_files(tmp_path / "kubelet") as made:
        yield made


def mount(place: str, path: Path, *, readonly: bool = False) -> cri.Mount:
    return cri.Mount(container_path=place, host_path=str(path), readonly=readonly)


async def started(
    stage: Stage, pod: Pod, name: str, mounts: Sequence[cri.Mount], script: str = "sleep 600"
) -> str:
    container = await stage.client.create(pod, stage.image, ["sh", "-c", script], name, mounts)
    await stage.client.start(container)
    return container


def shared(stage: Stage, pod: Pod) -> list[str]:
    """Paths that protectd shares with the pod's zone."""
    places = stage.node.protectd.run_dir / "volumes" / pod.id / "places"
    return sorted(str(path.relative_to(places)) for path in places.rglob("*"))


async def test_an_empty_dir_on_disk(stage: Stage, kubelet: PodFiles) -> None:
    """A single directory for all containers, with the kubelet's mode, and without files on the host."""
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


async def test_empty_dir_of_a_handler_with_empty_dirs_on_the_host(
    fresh_stage: Stage, kubelet: PodFiles
) -> None:
    """A pod keeps the setting of its creation: otherwise its containers would see different files."""
    stage, path = fresh_stage, kubelet.empty_dir("scratch")
    before = await stage.client.run_pod("before")
    await started(stage, before, "first", [mount("/v", path)], "echo zone > /v/file; sleep 600")
    await stage.node.daemon.stop()
    stage.node.configure(handlers={"xenpod": {"empty_dir": "host"}})
    await stage.node.daemon.start()
    async with stage.node.client() as client:
        again = replace(stage, client=client)
        pod = await client.run_pod("web")
        container = await started(again, pod, "main", [mount("/v", path)])
        await again.output(container, "echo host > /v/file")
        assert (path / "file").read_text() == "host\n" and shared(again, pod) != []
        second = await started(again, before, "second", [mount("/v", path)])
        assert await again.output(second, "cat /v/file") == "zone"


async def test_a_pod_of_the_kubelets_files_shares_nothing(stage: Stage, kubelet: PodFiles) -> None:
    settings = kubelet.files("configmap", "settings")
    settings.write({"a": "one"})
    token = kubelet.files("projected", "token", memory=True, mode=0o400)
    token.write({"token": "secret", "ca.crt": "ca"})
    part = kubelet.sub_path(settings.path, "a")
    pod = await stage.client.run_pod("web")
    own = PodFiles(kubelet.path.with_name(pod.config.metadata.uid))
    hosts, message = kubelet.etc_hosts("127.0.0.1 localhost\n"), own.termination_log()
    mounts = [
        mount("/settings", settings.path, readonly=True),
        mount("/token", token.path, readonly=True),
        mount("/part", part, readonly=True),
        mount("/etc/hosts", hosts),
        mount("/dev/termination-log", message),
        mount("/scratch", kubelet.empty_dir("scratch")),
    ]
    container = await started(stage, pod, "main", mounts, "echo why > /dev/termination-log; read x; exit 3")
    said = await started(stage, pod, "second", mounts[:-2])
    assert await stage.output(said, "cat /settings/a /token/token /part /etc/hosts") == (
        "onesecretone127.0.0.1 localhost"
    )
    assert shared(stage, pod) == []
    await stage.output(said, "echo 10.0.0.1 mine >> /etc/hosts")
    settings.write({"a": "two"})
    for node in (stage.node, stage.node.protectd):
        await node.daemon.crash()
        await node.daemon.start()
    async with stage.node.client() as client:
        await in_step(client)
        assert (
            await replace(stage, client=client).output(
                said, "until grep -q two /settings/a; do :; done; cat /part"
            )
            == "one"
        )
        await client.runtime.StopContainer(cri.StopContainerRequest(container_id=container), timeout=60)
        status = await container_status(client, container)
        assert status.state == cri.CONTAINER_EXITED and message.read_text() == "why\n"
        assert hosts.read_text() == "127.0.0.1 localhost\n", "what the zone writes is its own"
        assert shared(stage, pod) == []


async def test_writable_configmap_volume_is_shared_and_not_copied(stage: Stage, kubelet: PodFiles) -> None:
    settings = kubelet.files("configmap", "settings")
    settings.write({"a": "one"})
    pod = await stage.client.run_pod("web")
    container = await started(stage, pod, "main", [mount("/settings", settings.path)])
    await stage.output(container, "echo more >> /settings/a")
    assert (settings.path / "a").read_text() == "onemore\n" and shared(stage, pod) != []
