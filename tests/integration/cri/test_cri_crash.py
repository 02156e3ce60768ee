"""SIGKILL of either daemon at every step of every verb: afterwards the verb is done, or nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from uuid import uuid4

import grpc.aio
import pytest

from cri.cni import netns
from tests.support.cri.cri_daemons import container_status, in_step, needs_node
from tests.support.cri.stage import Stage, StageSettings
from tests.support.protect.daemons import ROOT, Daemon
from tests.support.session.checkpoints import killed_at
from tests.support.waiting import until
from tools.localnode.cri_client import Pod
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
    "remove-pod.recorded", "remove-container.ended", "remove-container.recorded", "remove-container.deleted",
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


@pytest.fixture(scope="module")
def stage_settings() -> StageSettings:
    return StageSettings({"handlers": {"xenpod": {"annotations": ["xenpod.dev/memory"]}}})


async def test_every_step_of_xenpod_cri_is_here() -> None:
    command = (sys.executable, "-m", "cri", "--list-checkpoints")
    listed = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    output, _ = await listed.communicate()
    # The steps of images are in test_images_kill.py and test_images_kernels.py.
    steps = [step for step in output.decode().split() if not step.startswith(("image-", "kernel-"))]
    assert sorted(steps) == sorted((*CRI_STEPS, *CRI_UNDO_STEPS))


@killed_at(CRI_STEPS)
async def test_verb_is_complete_or_undone_after_xenpod_cri_is_killed(stage: Stage, step: str) -> None:
    await _arm(stage, stage.node.daemon, step)
    await _killed_on_the_way(stage, stage.node.daemon)


@killed_at(CRI_UNDO_STEPS)
async def test_xenpod_cri_killed_during_its_undo(stage: Stage, step: str) -> None:
    await _arm(stage, stage.node.daemon, step)
    config = _pod("undo", annotations={"xenpod.dev/memory": "900Ti"})
    with pytest.raises(grpc.aio.AioRpcError):
        await stage.client.runtime.RunPodSandbox(cri.RunPodSandboxRequest(config=config), timeout=60)
    await _restart(stage, stage.node.daemon)
    await _nothing_left(stage)


@killed_at(PROTECTD_STEPS)
async def test_verb_is_complete_or_undone_after_protectd_is_killed(stage: Stage, step: str) -> None:
    await _arm(stage, stage.node.protectd.daemon, step)
    await _killed_on_the_way(stage, stage.node.protectd.daemon)


async def _killed_on_the_way(stage: Stage, victim: Daemon) -> None:
    """Walk the verbs until the daemon dies; restart the daemon; the verb is done, or as if never called."""
    story = Story(stage)
    verb = await story.walk()
    assert verb is not None, "the daemon was to be killed, and every verb succeeded"
    await _restart(stage, victim)
    await story.check(verb)
    await story.finish()
    await _nothing_left(stage)


class Story:
    """A pod with one container, from start to end."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._client = stage.client
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
        """The pod can be removed in any state."""
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
        await _nothing_left(self._stage)
        await self._run()
        await self._usable()

    async def _create(self) -> None:
        pod = Pod(self._pod, self._config)
        command = ["sh", "-c", "echo begun; exec sleep 1000"]
        self._container = await self._client.create(pod, self._stage.image, command)

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
        await _nothing_left(self._stage)
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


async def _arm(stage: Stage, victim: Daemon, step: str) -> None:
    """Restart the daemon, to die at ``step``."""
    await _all_serve(stage)
    await victim.stop()
    _faults(stage, victim, step)
    await victim.start()
    await _in_step(stage)


async def _restart(stage: Stage, victim: Daemon) -> None:
    status = await victim.ended()
    assert status == -9, f"it ended with {status}:\n{victim.tail()}"
    _faults(stage, victim, "")
    await victim.start()
    await _in_step(stage)


async def _all_serve(stage: Stage) -> None:
    """After a test that failed half-way."""
    for daemon in (stage.node.protectd.daemon, stage.node.daemon):
        if daemon.process is None or daemon.process.returncode is not None:
            _faults(stage, daemon, "")
            await daemon.start()
    await _in_step(stage)


def _faults(stage: Stage, victim: Daemon, step: str) -> None:
    owner = stage.node if victim is stage.node.daemon else stage.node.protectd
    owner.configure(faults={"kill_at": step})


async def _in_step(stage: Stage) -> None:
    async with asyncio.timeout(_SETTLE):
        await in_step(stage.client)


async def _nothing_left(stage: Stage) -> None:
    """The daemons tidy up in the background once they are in step."""
    left = stage.node.leftovers
    await until(lambda: not left(), _SETTLE, lambda: f"{left()}\n{stage.node.daemon.tail(3000)}")


async def test_a_pod_without_trouble_leaves_nothing(stage: Stage) -> None:
    await _all_serve(stage)
    story = Story(stage)
    assert await story.walk() is None
    await _nothing_left(stage)


@pytest.mark.parametrize(
    "milliseconds", [150, *(pytest.param(ms, marks=pytest.mark.further) for ms in (40, 400))]
)
@pytest.mark.parametrize("victim", ["cri", "protectd", "both"])
async def test_killed_while_many_pods_start(stage: Stage, victim: str, milliseconds: int) -> None:
    """At no step in particular: each pod is whole or gone, and every one can be removed."""
    await _all_serve(stage)
    daemons = {"cri": [stage.node.daemon], "protectd": [stage.node.protectd.daemon]}
    killed = daemons.get(victim) or [*daemons["cri"], *daemons["protectd"]]
    runs = [asyncio.create_task(Story(stage).walk()) for _ in range(8)]
    await asyncio.sleep(milliseconds / 1000)
    await asyncio.gather(*(daemon.crash() for daemon in killed))
    await asyncio.gather(*runs)
    await _all_serve(stage)
    reply = await stage.client.runtime.ListPodSandbox(cri.ListPodSandboxRequest())
    for pod in reply.items:
        if pod.state == cri.SANDBOX_READY:
            created = await stage.client.create(Pod(pod.id, _pod("any")), stage.image, ["true"], "extra")
            await stage.client.start(created)
    await asyncio.gather(*(stage.client.remove_pod(pod.id) for pod in reply.items))
    await _nothing_left(stage)


async def test_both_killed_while_a_container_runs(stage: Stage, tmp_path: Path) -> None:
    """The container goes on; its output and its end during the outage are there."""
    await _all_serve(stage)
    client = stage.client
    config = _pod("adopted", log_directory=str(tmp_path))
    reply = await client.runtime.RunPodSandbox(cri.RunPodSandboxRequest(config=config), timeout=60)
    pod = Pod(reply.pod_sandbox_id, config)
    script = "i=0; while [ $i -lt 300 ]; do echo line $i; i=$((i+1)); usleep 10000; done; exit 5"
    container = await client.create(pod, stage.image, ["sh", "-c", script])
    await client.start(container)
    await asyncio.gather(stage.node.daemon.crash(), stage.node.protectd.daemon.crash())
    await asyncio.sleep(0.5)  # the container writes while nobody reads
    await _all_serve(stage)
    status = await stage.exited(container)
    assert (status.state, status.exit_code, status.reason) == (cri.CONTAINER_EXITED, 5, "Error")
    lines = [line.split(" ", 3)[3] for line in client.log(pod).read_text().splitlines()]
    assert lines == [f"line {i}" for i in range(300)]
    await client.remove_pod(pod.id)
    await _nothing_left(stage)


async def test_pods_and_leases_after_a_reboot_of_the_host(stage: Stage) -> None:
    """The zones and network namespaces are gone; leases, state and records are still on disk."""
    await _all_serve(stage)
    client, node = stage.client, stage.node
    pod = await client.run_pod("rebooted")
    container = await client.create(pod, stage.image, ["sleep", "1000"])
    await client.start(container)
    ended = await client.create(pod, stage.image, ["sh", "-c", "exit 9"], "ended")
    await client.start(ended)
    await stage.exited(ended)
    async with node.protectd.clients() as protect:
        zone = await protect.zones.GetZone(protect_pb2.GetZoneRequest(id=pod.id))
    await asyncio.gather(node.daemon.crash(), node.protectd.daemon.crash())
    os.kill(zone.domain_id, signal.SIGKILL)
    for name in list(node.netns_dir.iterdir()):
        await netns.remove_netns(name)
    await _all_serve(stage)
    request = cri.PodSandboxStatusRequest(pod_sandbox_id=pod.id)
    assert (await client.runtime.PodSandboxStatus(request)).status.state == cri.SANDBOX_NOTREADY
    assert (await container_status(client, ended)).exit_code == 9
    status = await container_status(client, container)
    assert status.state == cri.CONTAINER_EXITED and status.reason in ("ZoneDestroyed", "Unknown")
    await client.remove_pod(pod.id)
    await _nothing_left(stage)
