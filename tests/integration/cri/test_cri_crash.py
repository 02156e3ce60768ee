"""SIGKILL of either daemon at every step of every verb: then the verb is done, or nothing is left of it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import grpc.aio
import pytest
import pytest_asyncio

from cri.cni import netns
from tests.support.cri.cri_daemons import CriNode, container_status, in_step, needs_node, pulled
from tests.support.protect.daemons import ROOT, Daemon
from tests.support.session.checkpoints import killed_at
from tests.support.waiting import until
from tools.localnode.cri_client import Client, Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2

pytestmark = [pytest.mark.root, pytest.mark.slow, needs_node, pytest.mark.asyncio(loop_scope="module")]

CRI_STEPS = (
    "run-pod.recorded", "network.namespace-named", "network.namespace-made", "network.plugin-added",
    "run-pod.network-attached", "run-pod.zone-created", "run-pod.both-made",
    "run-pod.connected", "run-pod.ready",
    "create-container.recorded", "create-container.prepared", "create-container.created",
    "start-container.asked", "start-container.started",
    "stop-pod.recorded", "stop-pod.containers-ended", "teardown.zone-destroyed", "network.plugin-deleted",
    "network.namespace-gone", "teardown.network-detached", "stop-pod.torn-down", "stop-pod.stopped",
    "remove-pod.recorded", "remove-container.recorded", "remove-container.deleted",
    "remove-container.forgotten", "remove-pod.containers-removed", "remove-pod.forgotten",
)  # fmt: skip
CRI_UNDO_STEPS = ("undo-pod.torn-down", "undo-pod.forgotten")
"""Passed only when RunPodSandbox fails."""

PROTECTD_STEPS = (
    "zone-create.recorded", "fake-create.written", "fake-create.grouped", "fake-create.launched",
    "fake-create.wired", "zone-create.domain-created", "zone-create.unpaused", "zone-create.connected",
    "zone-create.configured", "zone-create.running",
    "zone-connect.recorded", "zone-connect.spliced", "zone-connect.configured", "zone-connect.done",
    "workload-create.recorded", "workload-create.disk-attached", "workload-create.log-open",
    "workload-create.prepared", "workload-create.created",
    "workload-start.begun", "workload-start.started", "workload-start.running",
    "workload-exit.heard", "workload-exit.drained", "workload-exit.recorded",
    "zone-destroy.recorded", "zone-destroy.quiet", "fake-destroy.killed", "fake-destroy.ungrouped",
    "zone-destroy.domain-destroyed", "zone-destroy.files-removed", "zone-destroy.forgotten",
)  # fmt: skip

_SETTLE = 60.0


@dataclass
class Bench:
    """A node with an image."""

    node: CriNode
    client: Client
    image: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    folder = tmp_path_factory.mktemp("crash")
    node = CriNode(folder)
    node.configure(handlers={"xenpod": {"annotations": ["xenpod.dev/memory"]}})
    await node.start()
    try:
        async with pulled(node, folder / "registry") as image, node.client() as client:
            yield Bench(node, client, image)
    finally:
        await node.close()


async def test_every_step_of_xenpod_cri_is_here() -> None:
    command = (sys.executable, "-m", "cri", "--list-checkpoints")
    listed = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    output, _ = await listed.communicate()
    # Those of images are in test_images_kill.py and test_images_kernels.py.
    steps = [step for step in output.decode().split() if not step.startswith(("image-", "kernel-"))]
    assert sorted(steps) == sorted((*CRI_STEPS, *CRI_UNDO_STEPS))


@killed_at(CRI_STEPS)
async def test_xenpod_cri_killed(bench: Bench, step: str) -> None:
    await _arm(bench, bench.node.daemon, step)
    await _killed_on_the_way(bench, bench.node.daemon)


@killed_at(CRI_UNDO_STEPS)
async def test_xenpod_cri_killed_while_it_undoes(bench: Bench, step: str) -> None:
    await _arm(bench, bench.node.daemon, step)
    config = _pod("undo", annotations={"xenpod.dev/memory": "900Ti"})
    with pytest.raises(grpc.aio.AioRpcError):
        await bench.client.runtime.RunPodSandbox(cri.RunPodSandboxRequest(config=config), timeout=60)
    await _restart(bench, bench.node.daemon)
    await _nothing_left(bench)


@killed_at(PROTECTD_STEPS)
async def test_protectd_killed(bench: Bench, step: str) -> None:
    await _arm(bench, bench.node.protectd.daemon, step)
    await _killed_on_the_way(bench, bench.node.protectd.daemon)


async def _killed_on_the_way(bench: Bench, victim: Daemon) -> None:
    """Walk the verbs until the daemon dies in one; restart it; that verb is done, or as if never asked."""
    story = Story(bench)
    verb = await story.walk()
    assert verb is not None, "the daemon was to be killed, and every verb succeeded"
    await _restart(bench, victim)
    await story.check(verb)
    await story.finish()
    await _nothing_left(bench)


class Story:
    """One pod with one container, through its life."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._client = bench.client
        self._config = _pod("crash")
        self._pod = ""
        self._container = ""

    async def walk(self) -> str | None:
        """The verb in which the daemon died."""
        for verb in ("run", "create", "start", "stop", "remove"):
            try:
                await getattr(self, f"_{verb}")()
            except grpc.aio.AioRpcError as error:
                died = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
                assert error.code() in died, f"{verb}: {error.details()}"
                return verb
        return None

    async def check(self, verb: str) -> None:
        await getattr(self, f"_after_{verb}")()

    async def finish(self) -> None:
        """Whatever state it is in, the pod can be removed."""
        for pod in await self._client.pods():
            await self._client.remove_pod(pod)

    async def _run(self) -> None:
        request = cri.RunPodSandboxRequest(config=self._config)
        self._pod = (await self._client.runtime.RunPodSandbox(request, timeout=60)).pod_sandbox_id

    async def _after_run(self) -> None:
        """A pod that is listed is whole; else nothing is left, and the name is free."""
        pods = await self._client.pods()
        if pods:
            self._pod = pods[0]
            await self._usable()
            return
        await _nothing_left(self._bench)
        await self._run()
        await self._usable()

    async def _create(self) -> None:
        pod = Pod(self._pod, self._config)
        command = ["sh", "-c", "echo begun; exec sleep 1000"]
        self._container = await self._client.create(pod, self._bench.image, command)

    async def _after_create(self) -> None:
        containers = await self._containers()
        if containers:
            assert containers[0].state == cri.CONTAINER_CREATED
            self._container = containers[0].id
        else:
            await self._create()
        await self._start()
        await self._runs()

    async def _start(self) -> None:
        await self._client.start(self._container)

    async def _after_start(self) -> None:
        state = (await container_status(self._client, self._container)).state
        if state == cri.CONTAINER_CREATED:
            await self._start()
        await self._runs()

    async def _stop(self) -> None:
        request = cri.StopPodSandboxRequest(pod_sandbox_id=self._pod)
        await self._client.runtime.StopPodSandbox(request, timeout=60)

    async def _after_stop(self) -> None:
        """The kubelet asks again."""
        await self._stop()
        await _nothing_left(self._bench)
        status = await container_status(self._client, self._container)
        assert status.state == cri.CONTAINER_EXITED and status.exit_code in (137, 255)

    async def _remove(self) -> None:
        request = cri.RemovePodSandboxRequest(pod_sandbox_id=self._pod)
        await self._client.runtime.RemovePodSandbox(request, timeout=60)

    async def _after_remove(self) -> None:
        await self._remove()
        assert await self._client.pods() == [] and await self._containers() == []

    async def _usable(self) -> None:
        status = await self._client.runtime.PodSandboxStatus(
            cri.PodSandboxStatusRequest(pod_sandbox_id=self._pod)
        )
        assert status.status.state == cri.SANDBOX_READY and status.status.network.ip
        await self._create()
        await self._start()
        await self._runs()

    async def _runs(self) -> None:
        assert (await container_status(self._client, self._container)).state == cri.CONTAINER_RUNNING
        reply = await self._client.exec(self._container, "echo", "alive")
        assert reply.stdout == b"alive\n"

    async def _containers(self) -> list[cri.Container]:
        reply = await self._client.runtime.ListContainers(cri.ListContainersRequest())
        return list(reply.containers)


def _pod(name: str, **fields: object) -> cri.PodSandboxConfig:
    metadata = cri.PodSandboxMetadata(name=name, namespace="default", uid=str(uuid4()))
    return cri.PodSandboxConfig(metadata=metadata, **fields)  # type: ignore[arg-type]


async def _arm(bench: Bench, victim: Daemon, step: str) -> None:
    """Restart the daemon, to die at ``step``."""
    await _all_serve(bench)
    await victim.stop()
    _faults(bench, victim, step)
    await victim.start()
    await _in_step(bench)


async def _restart(bench: Bench, victim: Daemon) -> None:
    status = await victim.ended()
    assert status == -9, f"it ended with {status}:\n{victim.tail()}"
    _faults(bench, victim, "")
    await victim.start()
    await _in_step(bench)


async def _all_serve(bench: Bench) -> None:
    """After a test that failed half-way."""
    for daemon in (bench.node.protectd.daemon, bench.node.daemon):
        if daemon.process is None or daemon.process.returncode is not None:
            _faults(bench, daemon, "")
            await daemon.start()
    await _in_step(bench)


def _faults(bench: Bench, victim: Daemon, step: str) -> None:
    owner = bench.node if victim is bench.node.daemon else bench.node.protectd
    owner.configure(faults={"kill_at": step})


async def _in_step(bench: Bench) -> None:
    async with asyncio.timeout(_SETTLE):
        await in_step(bench.client)


async def _nothing_left(bench: Bench) -> None:
    """The daemons tidy up in the background once they are in step."""
    left = bench.node.leftovers
    await until(lambda: not left(), _SETTLE, lambda: f"{left()}\n{bench.node.daemon.tail(3000)}")


async def test_a_pod_without_trouble_leaves_nothing(bench: Bench) -> None:
    await _all_serve(bench)
    story = Story(bench)
    assert await story.walk() is None
    await _nothing_left(bench)


@pytest.mark.parametrize(
    "milliseconds", [150, *(pytest.param(ms, marks=pytest.mark.further) for ms in (40, 400))]
)
@pytest.mark.parametrize("victim", ["cri", "protectd", "both"])
async def test_killed_while_many_pods_start(bench: Bench, victim: str, milliseconds: int) -> None:
    """At no step in particular: each pod is whole or gone, and every one can be removed."""
    await _all_serve(bench)
    daemons = {"cri": [bench.node.daemon], "protectd": [bench.node.protectd.daemon]}
    killed = daemons.get(victim) or [*daemons["cri"], *daemons["protectd"]]
    runs = [asyncio.create_task(Story(bench).walk()) for _ in range(8)]
    await asyncio.sleep(milliseconds / 1000)
    await asyncio.gather(*(daemon.crash() for daemon in killed))
    await asyncio.gather(*runs)
    await _all_serve(bench)
    reply = await bench.client.runtime.ListPodSandbox(cri.ListPodSandboxRequest())
    for pod in reply.items:
        if pod.state == cri.SANDBOX_READY:
            created = await bench.client.create(Pod(pod.id, _pod("any")), bench.image, ["true"], "extra")
            await bench.client.start(created)
    await asyncio.gather(*(bench.client.remove_pod(pod.id) for pod in reply.items))
    await _nothing_left(bench)


async def test_both_killed_while_a_container_runs(bench: Bench, tmp_path: Path) -> None:
    """The container goes on; what it writes and how it ends meanwhile is all there."""
    await _all_serve(bench)
    client = bench.client
    config = _pod("adopted", log_directory=str(tmp_path))
    reply = await client.runtime.RunPodSandbox(cri.RunPodSandboxRequest(config=config), timeout=60)
    pod = Pod(reply.pod_sandbox_id, config)
    script = "i=0; while [ $i -lt 300 ]; do echo line $i; i=$((i+1)); usleep 10000; done; exit 5"
    container = await client.create(pod, bench.image, ["sh", "-c", script])
    await client.start(container)
    await asyncio.gather(bench.node.daemon.crash(), bench.node.protectd.daemon.crash())
    await asyncio.sleep(0.5)  # so that it writes while nobody reads
    await _all_serve(bench)
    status = await _exited(client, container)
    assert (status.state, status.exit_code, status.reason) == (cri.CONTAINER_EXITED, 5, "Error")
    lines = [line.split(" ", 3)[3] for line in client.log(pod).read_text().splitlines()]
    assert lines == [f"line {i}" for i in range(300)]
    await client.remove_pod(pod.id)
    await _nothing_left(bench)


async def test_a_host_that_rebooted(bench: Bench) -> None:
    """Its zones and network namespaces are gone, its disk is not: leases, state, records."""
    await _all_serve(bench)
    client, node = bench.client, bench.node
    pod = await client.run_pod("rebooted")
    container = await client.create(pod, bench.image, ["sleep", "1000"])
    await client.start(container)
    ended = await client.create(pod, bench.image, ["sh", "-c", "exit 9"], "ended")
    await client.start(ended)
    await _exited(client, ended)
    async with node.protectd.clients() as protect:
        zone = await protect.zones.GetZone(protect_pb2.GetZoneRequest(id=pod.id))
    await asyncio.gather(node.daemon.crash(), node.protectd.daemon.crash())
    os.kill(zone.domain_id, signal.SIGKILL)
    for name in list(node.netns_dir.iterdir()):
        await netns.remove_netns(name)
    await _all_serve(bench)
    request = cri.PodSandboxStatusRequest(pod_sandbox_id=pod.id)
    assert (await client.runtime.PodSandboxStatus(request)).status.state == cri.SANDBOX_NOTREADY
    assert (await container_status(client, ended)).exit_code == 9
    status = await container_status(client, container)
    assert status.state == cri.CONTAINER_EXITED and status.reason in ("ZoneDestroyed", "Unknown")
    await client.remove_pod(pod.id)
    await _nothing_left(bench)


async def _exited(client: Client, container: str) -> cri.ContainerStatus:
    async with asyncio.timeout(60):
        while True:
            status = await container_status(client, container)
            if status.state == cri.CONTAINER_EXITED:
                return status
            await asyncio.sleep(0.05)
