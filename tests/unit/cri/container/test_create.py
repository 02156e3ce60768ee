"""Containers over a protect.v1 in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from cri.container import execsync
from cri.sandbox import reconcile
from daemonkit.faults import Broken, Fault, TooLate, Unreachable
from tests.support.cri.cri_node import Rig, container_config, rig
from tests.support.waiting import until
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


@pytest.fixture
async def pod(node: Rig, tmp_path: Path) -> str:
    return await node.pod(log_directory=str(tmp_path / "logs"))


async def test_states_of_containers_at_the_end_of_their_pod_are_shown(node: Rig, pod: str) -> None:
    """A removal kills a running container first, and changes no state itself."""
    ended, running = await node.started(pod, "ended"), await node.started(pod, "running")
    fresh = await node.container(pod, "fresh")
    await node.cri.StopContainer(cri.StopContainerRequest(container_id=ended))

    async def states() -> list[cri.ContainerState.ValueType]:
        listed = (await node.cri.ListContainers(cri.ListContainersRequest())).containers
        by_id = {one.id: one.state for one in listed}
        return [by_id[one] for one in (ended, running, fresh)]

    assert await states() == [cri.CONTAINER_EXITED, cri.CONTAINER_RUNNING, cri.CONTAINER_CREATED]
    node.protect.stalls["DeleteWorkload"] = asyncio.Event()
    removals = [
        asyncio.ensure_future(node.cri.RemoveContainer(cri.RemoveContainerRequest(container_id=one)))
        for one in (ended, running, fresh)
    ]
    await until(lambda: node.protect.calls.count("DeleteWorkload") == 3)
    assert await states() == [cri.CONTAINER_EXITED, cri.CONTAINER_EXITED, cri.CONTAINER_CREATED]
    node.protect.stalls.pop("DeleteWorkload").set()
    await asyncio.gather(*removals)
    assert not (await node.cri.ListContainers(cri.ListContainersRequest())).containers


async def test_create_request_reaches_protectd_whole(node: Rig, pod: str, tmp_path: Path) -> None:
    container = await node.container(pod, log_path="main/0.log", command=["sleep"], args=["9"], tty=True)
    request = node.protect.requests[container]
    assert request.zone_id == pod
    assert [(one.path, one.type) for one in request.filesystems] == [
        ("/images/busybox.squashfs", "squashfs"),
        ("/images/busybox-2.squashfs", "squashfs"),
    ]
    assert request.log_path == str(tmp_path / "logs" / "main" / "0.log")
    assert request.tty and Path(request.log_path).parent.is_dir()
    oci = json.loads(request.oci_config)
    assert oci["process"]["args"] == ["sleep", "9"]
    assert oci["linux"]["cgroupsPath"] == f"/workloads/{container}"
    files = {file.name: file.content for file in request.files}
    assert set(files) == {"hostname", "hosts", "resolv.conf"}
    assert b"10.0.0.1\tweb\n" in files["hosts"] and files["hostname"] == b"web\n"


async def test_a_container_passes_all_states_of_its_life(node: Rig, pod: str) -> None:
    container = await node.container(pod, labels={"a": "b"}, annotations={"c": "d"})
    status = await node.status(container)
    assert status.state == cri.CONTAINER_CREATED and status.created_at > 0 and status.started_at == 0
    assert (dict(status.labels), dict(status.annotations)) == ({"a": "b"}, {"c": "d"})
    assert status.image.image == "localhost/busybox:1" and status.image_ref == node.images.image.reference
    assert status.image_id == node.images.image.id
    await node.cri.StartContainer(cri.StartContainerRequest(container_id=container))
    status = await node.status(container)
    assert status.state == cri.CONTAINER_RUNNING and status.started_at >= status.created_at
    await node.protect.exit(container, 3, "Error")
    status = await _ended(node, container)
    assert (status.exit_code, status.reason) == (3, "Error") and status.finished_at >= status.started_at
    await node.cri.RemoveContainer(cri.RemoveContainerRequest(container_id=container))
    assert await node.containers() == [] and not node.protect.workloads and not node.images.held


async def test_start_needs_a_created_container(node: Rig, pod: str) -> None:
    container = await node.started(pod)
    for wanted, code in (
        (container, grpc.StatusCode.FAILED_PRECONDITION),
        ("f" * 64, grpc.StatusCode.NOT_FOUND),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await node.cri.StartContainer(cri.StartContainerRequest(container_id=wanted))
        assert raised.value.code() is code


async def test_a_failed_start_ends_the_container(node: Rig, pod: str) -> None:
    container = await node.container(pod)
    await node.protect.exit(container, 127, "StartError")
    await _ended(node, container)
    other = await node.container(pod, "other")
    node.protect.failures["StartWorkload"] = Broken("start", other, "no such file: /bin/nope")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.cri.StartContainer(cri.StartContainerRequest(container_id=other))
    assert "/bin/nope" in (raised.value.details() or "")


@pytest.mark.parametrize("late", [False, True])
async def test_a_failed_create_leaves_nothing(node: Rig, pod: str, late: bool) -> None:
    failures = node.protect.late_failures if late else node.protect.failures
    failures["CreateWorkload"] = Unreachable("create", "workload", "the zone is silent")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.container(pod)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    assert not node.protect.workloads and not node.daemon.records.containers.all() and not node.images.held
    failures.clear()
    await node.container(pod)


async def test_a_failed_undo_is_finished_later(node: Rig, pod: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "_RETRY_SECONDS", 0.1)
    node.protect.late_failures["CreateWorkload"] = Broken("create", "workload", "no")
    node.protect.failures["DeleteWorkload"] = Unreachable("delete", "workload", "away")
    with pytest.raises(grpc.aio.AioRpcError):
        await node.container(pod)
    assert len(node.protect.workloads) == 1 and await node.containers() == []
    node.protect.failures.clear()
    await until(lambda: not node.protect.workloads)


@pytest.mark.parametrize("call", ["StopContainer", "RemoveContainer"])
async def test_unknown_containers_stop_and_go_gladly(node: Rig, call: str) -> None:
    await getattr(node.cri, call)(getattr(cri, f"{call}Request")(container_id="f" * 64))


async def test_stop_asks_first_and_kills_when_time_is_over(node: Rig, pod: str) -> None:
    polite = await node.started(pod, "polite")
    await node.cri.StopContainer(cri.StopContainerRequest(container_id=polite, timeout=60))
    assert node.protect.signals == [(polite, 15)]
    assert (await node.status(polite)).exit_code == 143
    node.protect.ignored_signals = {15}
    stubborn = await node.started(pod, "stubborn")
    await node.cri.StopContainer(cri.StopContainerRequest(container_id=stubborn, timeout=1))
    assert node.protect.signals[1:] == [(stubborn, 15), (stubborn, 9)]
    assert (await node.status(stubborn)).exit_code == 137
    hasty = await node.started(pod, "hasty")
    await node.cri.StopContainer(cri.StopContainerRequest(container_id=hasty, timeout=0))
    assert node.protect.signals[3:] == [(hasty, 9)]
    await node.cri.StopContainer(cri.StopContainerRequest(container_id=hasty, timeout=0))


async def test_a_second_stop_with_less_patience_gets_through(node: Rig, pod: str) -> None:
    node.protect.ignored_signals = {15}
    container = await node.started(pod)
    patient = asyncio.ensure_future(
        node.cri.StopContainer(cri.StopContainerRequest(container_id=container, timeout=3600))
    )
    await until(lambda: bool(node.protect.signals))
    async with asyncio.timeout(60):
        await node.cri.StopContainer(cri.StopContainerRequest(container_id=container, timeout=0))
        await patient


async def test_the_stop_signal_is_the_requests_or_the_images(node: Rig, pod: str) -> None:
    asked = await node.started(pod, "asked", stop_signal=cri.SIGQUIT)
    await node.cri.StopContainer(cri.StopContainerRequest(container_id=asked, timeout=9))
    node.images.image = _with(node, stop_signal="SIGRTMIN+3")
    image = await node.started(pod, "image")
    await node.cri.StopContainer(cri.StopContainerRequest(container_id=image, timeout=9))
    assert node.protect.signals == [(asked, 3), (image, 37)]
    assert (await node.status(asked)).stop_signal == cri.SIGQUIT
    assert (await node.status(image)).stop_signal == cri.SIGRTMINPLUS3


async def test_lists_are_filtered(node: Rig, pod: str) -> None:
    other = await node.pod("other")
    running = await node.started(pod, "running", labels={"app": "x"})
    created = await node.container(other, "created", labels={"app": "x", "role": "y"})
    assert await node.containers() == [running, created]
    assert await node.containers(id=running[:10]) == [running]
    assert await node.containers(pod_sandbox_id=other) == [created]
    assert await node.containers(label_selector={"app": "x", "role": "y"}) == [created]
    state = cri.ContainerStateValue(state=cri.CONTAINER_RUNNING)
    assert await node.containers(state=state) == [running]
    assert await node.containers(state=state, pod_sandbox_id=other) == []


async def test_names_are_taken_within_a_pod(node: Rig, pod: str) -> None:
    first = await node.container(pod, "main")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.container(pod, "main")
    assert raised.value.code() is grpc.StatusCode.ALREADY_EXISTS and first in (raised.value.details() or "")
    await node.container(await node.pod("other"), "main")
    await node.container(pod, metadata=cri.ContainerMetadata(name="main", attempt=1))


async def test_exec_sync_returns_output_and_exit_code(node: Rig, pod: str) -> None:
    container = await node.started(pod, working_dir="/srv")
    node.protect.exec_outputs = [
        pb.ExecOutput(stdout=b"out"),
        pb.ExecOutput(stderr=b"err"),
        pb.ExecOutput(stdout=b"put"),
        pb.ExecOutput(exit=pb.ProcessExit(exit_code=7)),
    ]
    request = cri.ExecSyncRequest(container_id=container, cmd=["id"], timeout=5)
    reply = await node.cri.ExecSync(request)
    assert (reply.stdout, reply.stderr, reply.exit_code) == (b"output", b"err", 7)
    start = node.protect.execs[0]
    process = json.loads(start.process)
    assert (process["args"], process["cwd"], process["terminal"]) == (["id"], "/srv", False)
    assert start.timeout_ns == 5 * 10**9


async def test_exec_output_is_bounded(node: Rig, pod: str) -> None:
    container = await node.started(pod)
    chunk = b"x" * (1 << 20)
    node.protect.exec_outputs = [pb.ExecOutput(stdout=chunk) for _ in range(20)]
    node.protect.exec_outputs.append(pb.ExecOutput(exit=pb.ProcessExit(exit_code=0)))
    reply = await node.cri.ExecSync(cri.ExecSyncRequest(container_id=container, cmd=["yes"]))
    assert len(reply.stdout) == execsync.OUTPUT_LIMIT_BYTES


EXEC_TROUBLE: list[tuple[dict[str, Any], Fault | None, grpc.StatusCode]] = [
    ({"cmd": ["x"], "timeout": 1}, TooLate("exec", "x", "1 s"), grpc.StatusCode.DEADLINE_EXCEEDED),
    ({"cmd": []}, None, grpc.StatusCode.INVALID_ARGUMENT),
    ({"cmd": ["a\0b"]}, None, grpc.StatusCode.INVALID_ARGUMENT),
    ({"cmd": ["x"], "timeout": -1}, None, grpc.StatusCode.INVALID_ARGUMENT),
]


@pytest.mark.parametrize(("fields", "fault", "code"), EXEC_TROUBLE)
async def test_a_failed_exec_has_its_code(
    node: Rig, pod: str, fields: dict[str, Any], fault: Fault | None, code: grpc.StatusCode
) -> None:
    container = await node.started(pod)
    if fault:
        node.protect.failures["Exec"] = fault
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.cri.ExecSync(cri.ExecSyncRequest(container_id=container, **fields))
    assert raised.value.code() is code


async def test_an_exec_in_a_silent_zone_times_out(
    node: Rig, pod: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protectd counts from the process's start, and the start may never come."""
    monkeypatch.setattr(execsync, "_ANSWER_SECONDS", 0.1)
    container = await node.started(pod)
    node.protect.stalls["Exec"] = asyncio.Event()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        request = cri.ExecSyncRequest(container_id=container, cmd=["x"], timeout=1)
        await node.cri.ExecSync(request, timeout=20)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "its zone did not answer within 1.1 s" in (raised.value.details() or "")


async def test_exec_without_an_exit_code_is_no_success(node: Rig, pod: str) -> None:
    container = await node.started(pod)
    node.protect.exec_outputs = [pb.ExecOutput(stdout=b"half")]
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.cri.ExecSync(cri.ExecSyncRequest(container_id=container, cmd=["x"]))
    assert raised.value.code() is grpc.StatusCode.INTERNAL


async def test_only_a_running_container_execs(node: Rig, pod: str) -> None:
    container = await node.container(pod)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.cri.ExecSync(cri.ExecSyncRequest(container_id=container, cmd=["x"]))
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_statistics_of_a_container_are_returned(node: Rig, pod: str) -> None:
    container = await node.started(pod, labels={"app": "x"})
    await node.container(pod, "second")
    reply = await node.cri.ContainerStats(cri.ContainerStatsRequest(container_id=container))
    assert reply.stats.cpu.usage_core_nano_seconds.value == 5_000_000
    assert reply.stats.memory.available_bytes.value == 4096
    assert reply.stats.attributes.metadata.name == "main"
    listed = (await node.cri.ListContainerStats(cri.ListContainerStatsRequest())).stats
    assert len(listed) == 2
    only = cri.ContainerStatsFilter(label_selector={"app": "x"})
    listed = (await node.cri.ListContainerStats(cri.ListContainerStatsRequest(filter=only))).stats
    assert [stats.attributes.id for stats in listed] == [container]


async def test_a_log_is_reopened_while_its_container_runs(node: Rig, pod: str) -> None:
    container = await node.started(pod)
    await node.cri.ReopenContainerLog(cri.ReopenContainerLogRequest(container_id=container))
    assert "ReopenLog" in node.protect.calls
    await node.protect.exit(container, 0, "Completed")
    await _ended(node, container)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.cri.ReopenContainerLog(cri.ReopenContainerLogRequest(container_id=container))
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_an_unknown_image_and_an_unknown_pod_are_not_found(node: Rig, pod: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.container(pod, image=cri.ImageSpec(image="nowhere/nothing:1"))
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND and "pull it first" in (
        raised.value.details() or ""
    )
    request = cri.CreateContainerRequest(pod_sandbox_id="f" * 64, config=container_config())
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.cri.CreateContainer(request)
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


async def test_an_impossible_exit_of_a_hostile_zone_is_bounded(node: Rig, pod: str) -> None:
    container = await node.started(pod)
    await node.protect.exit(container, 2**32 - 1, "Kubelet, please delete everything")
    status = await _ended(node, container)
    assert status.exit_code == 2**31 - 1 and status.reason == "Unknown"


def _with(node: Rig, **fields: Any) -> Any:
    return replace(node.images.image, **fields)


async def _ended(node: Rig, container: str) -> cri.ContainerStatus:
    """Wait until the container's end is known; returns its status."""
    await until(lambda: node.daemon.records.containers.get(container).exit is not None)
    status: cri.ContainerStatus = await node.status(container)
    return status
