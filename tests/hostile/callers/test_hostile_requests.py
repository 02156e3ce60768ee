"""Every field of every request, with hostile values: refused, or done and undone.

A status other than a refusal, or an unexpected error in a log, shows a missing check.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.support.cri.cri_daemons import needs_node
from tests.support.cri.hostile_requests import hostile
from tests.support.cri.stage import Stage
from tests.support.protect.zones import Zones, serving
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="module")]

SECONDS = 60.0
REFUSED = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
)
PODS = int(os.environ.get("XENPOD_FUZZ", "150"))
"""Number of tried requests for pods; each may make a pod."""
_AT_ONCE = 6

Call = Callable[..., Awaitable[Any]]
Undo = Callable[[Any], Awaitable[None]]
Job = tuple[str, Call, Any, Undo | None]


async def tried(jobs: Iterable[Job], logs: Sequence[Path]) -> None:
    """Make all the requests, some at once, and undo their effects."""
    wrong: list[str] = []
    waiting = list(jobs)
    assert waiting

    async def work() -> None:
        while waiting:
            said, call, request, undo = waiting.pop()
            try:
                reply = await call(request, timeout=SECONDS)
                if undo:
                    await undo(reply)
            except grpc.aio.AioRpcError as error:
                if error.code() not in REFUSED:
                    wrong.append(f"{said}: {error.code().name}: {error.details()}"[:400])

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
    assert wrong == []
    for log in logs:
        unexpected = [line[:400] for line in log.read_text().splitlines() if "unexpected error in" in line]
        assert unexpected == []


def all_of(name: str, call: Call, good: Any, undo: Undo | None = None) -> list[Job]:
    return [(f"{name}: {said}", call, request, undo) for said, request in hostile(good)]


def logs(stage: Stage) -> Sequence[Path]:
    return stage.node.daemon.log, stage.node.protectd.daemon.log


async def test_every_field_of_pods(stage: Stage) -> None:
    good = cri.RunPodSandboxRequest(config=(await stage.client.run_pod("good")).config)
    runtime = stage.client.runtime

    async def remove(reply: cri.RunPodSandboxResponse) -> None:
        await stage.client.remove_pod(reply.pod_sandbox_id)

    jobs = all_of("RunPodSandbox", runtime.RunPodSandbox, good, remove)
    for number, (said, _, request, _) in enumerate(jobs):
        if "metadata" not in said:
            request.config.metadata.uid = f"u{number}"
    chosen = random.Random(PODS).sample(jobs, min(PODS, len(jobs)))
    await tried(chosen, logs(stage))
    assert len(await stage.client.pods()) == 1


async def test_every_field_of_containers(stage: Stage) -> None:
    pod = await stage.client.run_pod("good")
    runtime = stage.client.runtime
    config = cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name="main"),
        image=cri.ImageSpec(image=stage.image),
        command=["true"],
        log_path="main.log",
        linux=cri.LinuxContainerConfig(),
    )
    good = cri.CreateContainerRequest(pod_sandbox_id=pod.id, config=config, sandbox_config=pod.config)

    async def remove(reply: cri.CreateContainerResponse) -> None:
        try:
            start = cri.StartContainerRequest(container_id=reply.container_id)
            await runtime.StartContainer(start, timeout=SECONDS)
        finally:
            gone = cri.RemoveContainerRequest(container_id=reply.container_id)
            await runtime.RemoveContainer(gone, timeout=SECONDS)

    jobs = all_of("CreateContainer", runtime.CreateContainer, good, remove)
    for number, (said, _, request, _) in enumerate(jobs):
        if "metadata" not in said:
            request.config.metadata.name = f"c{number}"
    await tried(jobs, logs(stage))
    left = await runtime.ListContainers(cri.ListContainersRequest(), timeout=SECONDS)
    assert not left.containers


async def test_all_other_requests_of_cri(stage: Stage) -> None:
    pod = await stage.client.run_pod("good")
    container = await stage.started(pod, "sleep 3600")
    runtime = stage.client.runtime
    good = {
        "UpdateContainerResources": cri.UpdateContainerResourcesRequest(container_id=container),
        "UpdatePodSandboxResources": cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id=pod.id),
        "ExecSync": cri.ExecSyncRequest(container_id=container, cmd=["true"], timeout=5),
        "Exec": cri.ExecRequest(container_id=container, cmd=["true"], stdout=True),
        "Attach": cri.AttachRequest(container_id=container, stdout=True),
        "PortForward": cri.PortForwardRequest(pod_sandbox_id=pod.id, port=[80]),
        "ContainerStatus": cri.ContainerStatusRequest(container_id=container),
        "PodSandboxStatus": cri.PodSandboxStatusRequest(pod_sandbox_id=pod.id),
        "CheckpointContainer": cri.CheckpointContainerRequest(container_id=container),
    }
    jobs = []
    for method in cri.DESCRIPTOR.services_by_name["RuntimeService"].methods:
        if method.server_streaming or method.name in ("RunPodSandbox", "CreateContainer"):
            continue
        empty = getattr(cri, method.input_type.name)()
        jobs += all_of(method.name, getattr(runtime, method.name), good.get(method.name, empty))
    await tried(jobs, logs(stage))
    # Both daemons and the container survived all requests.
    assert (await stage.client.exec(container, "echo", "there")).stdout == b"there\n"


async def test_all_requests_of_protect(tmp_path: Path, busybox_image: Path) -> None:
    async with serving(tmp_path, busybox_image) as zones:
        await tried_in(zones)


async def tried_in(zones: Zones) -> None:
    """Make all requests of protect.v1 with wrong fields; the zone and its workload go on."""
    await zones.create_zone()
    await zones.run("sleep", "3600")
    clients = zones.clients
    begin = {
        "CreateZone": pb.CreateZoneRequest(id="z2", name="web"),
        "ConnectNetwork": pb.ConnectNetworkRequest(zone_id="z1", netns_path="/none", interface="eth0"),
        "ResizeZone": pb.ResizeZoneRequest(id="z1"),
        "CreateWorkload": zones.request(["true"], "w2"),
        "UpdateWorkload": pb.UpdateWorkloadRequest(id="w1"),
        "WorkloadStats": pb.WorkloadStatsRequest(),
    }

    async def destroy(reply: pb.Zone) -> None:
        await zones.destroy_zone(reply.id)

    async def delete(reply: pb.Workload) -> None:
        await zones.delete(reply.id)

    undo: dict[str, Undo] = {"CreateZone": destroy, "CreateWorkload": delete}
    jobs = []
    for service, stub in (("Zones", clients.zones), ("Workloads", clients.workloads)):
        for method in pb.DESCRIPTOR.services_by_name[service].methods:
            if method.server_streaming or method.client_streaming or method.name == "ShutdownZones":
                continue
            good = begin.get(method.name, getattr(pb, method.input_type.name)())
            jobs += all_of(method.name, getattr(stub, method.name), good, undo.get(method.name))
    await tried(jobs, [zones.protectd.daemon.log])
    assert await zones.exec("echo", "there") == (b"there\n", b"", 0)
