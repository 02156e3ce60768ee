"""Containers: from CreateContainer to RemoveContainer, every end, and every way to read their state."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from tests.support.cri.conformance import SuiteStage, linux, refused
from tests.support.cri.cri_daemons import IMAGE, needs_node
from tests.support.cri.events import PATIENCE
from tools.localnode.cri_client import Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="session")]

MIB = 1 << 20
_LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}(Z|[+-]\d\d:\d\d) (stdout|stderr) [FP] .*")


async def listed(stage: SuiteStage, **fields: object) -> list[str]:
    """Ids by ListContainers; StreamContainers must give the same ids, each once."""
    wanted = cri.ContainerFilter(**fields)  # type: ignore[arg-type]
    reply = await stage.runtime.ListContainers(cri.ListContainersRequest(filter=wanted), timeout=PATIENCE)
    stream = stage.runtime.StreamContainers(cri.StreamContainersRequest(filter=wanted), timeout=PATIENCE)
    streamed = [item async for part in stream for item in part.containers]
    assert streamed == list(reply.containers)
    return [item.id for item in streamed]


async def stop(stage: SuiteStage, container: str, timeout: int = 0) -> None:
    request = cri.StopContainerRequest(container_id=container, timeout=timeout)
    await stage.runtime.StopContainer(request, timeout=PATIENCE)


async def test_status_follows_a_container_from_create_to_remove(stage: SuiteStage, shared_pod: Pod) -> None:
    begun = time.time_ns()
    labels, notes = {"tier": "front"}, {"example.com/why": "test"}
    resources = cri.LinuxContainerResources(memory_limit_in_bytes=48 * MIB, cpu_shares=512)
    container = await stage.create(
        shared_pod,
        metadata=cri.ContainerMetadata(name="life", attempt=3),
        labels=labels,
        annotations=notes,
        stop_signal=cri.SIGUSR1,
        linux=linux(resources, run_as_user=cri.Int64Value(value=101), run_as_group=cri.Int64Value(value=102)),
    )
    created = await stage.status(container)
    assert created.state == cri.CONTAINER_CREATED and created.started_at == created.finished_at == 0
    await stage.client.start(container)
    running = await stage.status(container)
    assert running.state == cri.CONTAINER_RUNNING and running.id == container
    assert begun < running.created_at < running.started_at < time.time_ns()
    assert (running.metadata.name, running.metadata.attempt) == ("life", 3)
    assert (dict(running.labels), dict(running.annotations)) == (labels, notes)
    assert (running.image.image, running.image_id) == (IMAGE, stage.image)
    assert running.image_ref.startswith(IMAGE.partition(":")[0] + "@sha256:")
    assert Path(running.log_path).parent == Path(shared_pod.config.log_directory)
    who = running.user.linux
    assert (who.uid, who.gid, set(who.supplemental_groups)) == (101, 102, {102, 103})
    shown = running.resources.linux
    assert (shown.memory_limit_in_bytes, shown.cpu_shares) == (48 * MIB, 512)
    assert running.stop_signal == cri.SIGUSR1
    request = cri.ContainerStatusRequest(container_id=container[:16], verbose=True)
    info = (await stage.runtime.ContainerStatus(request, timeout=PATIENCE)).info["info"]
    assert json.loads(info)["process"]["args"][0] == "sh"
    with refused("FAILED_PRECONDITION", container):
        await stage.client.start(container)
    await stop(stage, container)
    ended = await stage.ended(container)
    assert ended.started_at < ended.finished_at < time.time_ns()
    await stop(stage, container, 10)
    remove = cri.RemoveContainerRequest(container_id=container)
    await stage.runtime.RemoveContainer(remove, timeout=PATIENCE)
    await stage.runtime.RemoveContainer(remove, timeout=PATIENCE)
    await stop(stage, container)
    with refused("NOT_FOUND", container[:64]):
        await stage.status(container)
    assert container not in await listed(stage)


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [("true", 0, "Completed"), ("exit 7", 7, "Error"), ("kill -TERM $$; sleep 60", 143, "Error")],
)
async def test_exit_code_is_the_processs_or_128_plus_its_signal(
    stage: SuiteStage, shared_pod: Pod, script: str, code: int, reason: str
) -> None:
    """A signal's number is added to 128.  With processes of the pod: signals spare a namespace's first."""
    container = await stage.started(
        shared_pod, script, linux=linux(namespace_options=cri.NamespaceOption(pid=cri.POD))
    )
    end = await stage.ended(container)
    assert (end.exit_code, end.reason) == (code, reason)


async def test_container_beyond_its_memory_limit_is_oom_killed(stage: SuiteStage, shared_pod: Pod) -> None:
    limit = cri.LinuxContainerResources(memory_limit_in_bytes=8 * MIB)
    end = await stage.ended(await stage.started(shared_pod, "exec tail /dev/zero", linux=linux(limit)))
    assert (end.exit_code, end.reason) == (137, "OOMKilled")


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("/no/such/command", "not found"),
        ("no-such-command", "not found"),
        ("/etc", "open executable"),
        ("/etc/passwd", "Permission denied"),
    ],
)
async def test_unknown_command_is_refused_at_start(
    stage: SuiteStage, shared_pod: Pod, command: str, why: str
) -> None:
    """The creation succeeds; start and later status give the reason."""
    container = await stage.create(shared_pod, command=[command])
    created = await stage.status(container)
    assert (created.state, created.exit_code, created.reason) == (cri.CONTAINER_CREATED, 0, "")
    begun = time.time_ns()
    with refused("FAILED_PRECONDITION", command, why):
        await stage.client.start(container)
    end = await stage.status(container)
    assert (end.state, end.exit_code, end.reason) == (cri.CONTAINER_EXITED, 128, "StartError")
    assert command in end.message and why in end.message
    assert (end.started_at, begun < end.finished_at < time.time_ns()) == (0, True)
    assert Path(end.log_path).read_bytes() == b""
    with refused("FAILED_PRECONDITION", "exited"):
        await stage.client.start(container)
    remove = cri.RemoveContainerRequest(container_id=container)
    await stage.runtime.RemoveContainer(remove, timeout=PATIENCE)
    assert container not in await listed(stage)


async def test_invalid_create_request_is_refused_and_leaves_nothing(
    stage: SuiteStage, shared_pod: Pod
) -> None:
    """The refusal comes at once, and nothing is left."""
    before = await listed(stage)
    with refused("INVALID_ARGUMENT"):
        await stage.create(shared_pod, command=["a\0b"])
    with refused("NOT_FOUND", "nosuch.test/image:1"):
        await stage.create(shared_pod, image=cri.ImageSpec(image="nosuch.test/image:1"))
    with refused("NOT_FOUND"):
        await stage.create(Pod("0" * 64, shared_pod.config))
    assert await listed(stage) == before


async def test_a_stop_signal_and_then_the_kill(stage: SuiteStage, shared_pod: Pod) -> None:
    polite = "trap 'echo polite; exit 4' USR1; echo up; while :; do usleep 10000; done"
    container = await stage.started(shared_pod, polite, stop_signal=cri.SIGUSR1)
    await stage.logged(container, "up")
    await stop(stage, container, 60)
    assert (await stage.ended(container)).exit_code == 4
    assert await stage.logged(container, "polite")
    stubborn = await stage.started(shared_pod, "trap '' TERM; echo up; while :; do usleep 10000; done")
    await stage.logged(stubborn, "up")
    begun = time.monotonic()
    await stop(stage, stubborn, 1)
    assert time.monotonic() - begun >= 1
    assert (await stage.ended(stubborn)).exit_code == 137


async def test_second_attempt_is_created_and_same_attempt_refused(stage: SuiteStage, shared_pod: Pod) -> None:
    metadata = cri.ContainerMetadata(name="again", attempt=0)
    first = await stage.create(shared_pod, metadata=metadata)
    with refused("ALREADY_EXISTS", first):
        await stage.create(shared_pod, metadata=metadata)
    second = await stage.create(shared_pod, metadata=cri.ContainerMetadata(name="again", attempt=1))
    assert (await stage.status(second)).metadata.attempt == 1 and first != second


async def test_containers_are_listed_by_each_filter(stage: SuiteStage, shared_pod: Pod) -> None:
    labels = {"set": "filters"}
    one = await stage.started(shared_pod, labels=labels | {"name": "one"})
    two = await stage.create(shared_pod, labels=labels)
    running, created = (
        cri.ContainerStateValue(state=state) for state in (cri.CONTAINER_RUNNING, cri.CONTAINER_CREATED)
    )
    assert set(await listed(stage)) >= {one, two}
    assert await listed(stage, label_selector=labels) == [one, two]
    assert await listed(stage, label_selector=labels, state=running) == [one]
    assert await listed(stage, pod_sandbox_id=shared_pod.id, state=created) == [two]
    assert await listed(stage, label_selector=labels | {"name": "one"}) == [one]
    assert await listed(stage, id=two[:20]) == [two]
    assert await listed(stage, id=one, pod_sandbox_id="0" * 64) == []


async def test_log_splits_long_lines_and_continues_after_rotation(stage: SuiteStage, shared_pod: Pod) -> None:
    """Lines with nanoseconds; long ones in parts; a new file after rotation."""
    script = (
        "echo out; echo err >&2; head -c 20000 /dev/zero | tr '\\0' x; echo; "
        "while [ ! -e /go ]; do usleep 10000; done; echo late"
    )
    container = await stage.started(shared_pod, script)
    await stage.logged(container, "stderr F err")  # either stream may come first
    lines = await stage.logged(container, "stdout F x")
    path = Path((await stage.status(container)).log_path)
    assert all(_LINE.fullmatch(line) for line in path.read_text().splitlines())
    assert {"stdout F out", "stderr F err"} <= set(lines)
    long = [line for line in lines if line.startswith(("stdout P x", "stdout F x"))]
    assert len(long) >= 2 and sum(line.count("x") for line in long) == 20_000
    path.rename(path.with_suffix(".old"))
    request = cri.ReopenContainerLogRequest(container_id=container)
    await stage.runtime.ReopenContainerLog(request, timeout=PATIENCE)
    await stage.output(container, "touch /go")
    await stage.ended(container)
    assert [line.split(" ", 1)[1] for line in path.read_text().splitlines()] == ["stdout F late"]
    with refused("FAILED_PRECONDITION", container):
        await stage.runtime.ReopenContainerLog(request, timeout=PATIENCE)


async def test_exec_sync_returns_outputs_and_ends_at_its_timeout(stage: SuiteStage, shared_pod: Pod) -> None:
    container = await stage.started(shared_pod)
    reply = await stage.client.exec(container, "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (reply.stdout, reply.stderr, reply.exit_code) == (b"out\n", b"err\n", 3)
    # time for the process to begin, in emulation too
    seconds = 15 if stage.toolstack == "libxl" else 2
    late = cri.ExecSyncRequest(
        container_id=container, cmd=["sh", "-c", "echo $$ >/pid; exec sleep 1001"], timeout=seconds
    )
    with refused("DEADLINE_EXCEEDED"):
        await stage.runtime.ExecSync(late, timeout=PATIENCE)
    gone = "test -s /pid && while [ -d /proc/$(cat /pid) ]; do usleep 10000; done; echo gone"
    assert await stage.output(container, gone) == "gone"
    with refused("FAILED_PRECONDITION", "/no/such"):
        await stage.client.exec(container, "/no/such")
    await stop(stage, container)
    with refused("FAILED_PRECONDITION", container):
        await stage.client.exec(container, "true")


async def test_exec_sync_cuts_output_off(stage: SuiteStage, shared_pod: Pod) -> None:
    """At 16 MiB, as containerd does; the command goes on to its end."""
    container = await stage.started(shared_pod)
    script = "head -c 20000000 /dev/zero; echo kept >&2; exit 5"
    reply = await stage.client.exec(container, "sh", "-c", script)
    assert reply.exit_code == 5 and 15 * MIB < len(reply.stdout) <= 16 * MIB
