"""The whole story over the real CRI socket: both daemons, the fake toolstack, real images and CNI plugins."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from tests.support.cri.cri_daemons import container_status, needs_node
from tests.support.cri.stage import Stage
from tests.support.waiting import until
from tools.localnode.cri_client import Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="module")]

LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}(Z|[+-]\d\d:\d\d) (stdout|stderr) [FP] (.*)")


@pytest_asyncio.fixture(loop_scope="module")
async def pod(stage: Stage) -> AsyncIterator[Pod]:
    """A pod, which must leave nothing."""
    made = await stage.client.run_pod("story")
    yield made
    await stage.client.remove_pod(made.id)
    await stage.node.nothing_left()


async def test_log_exec_stats_and_end(stage: Stage, pod: Pod) -> None:
    client = stage.client
    script = "echo to-out; echo to-err >&2; while [ ! -e /end ]; do usleep 10000; done; exit 7"
    container = await stage.started(pod, script)
    assert (await container_status(client, container)).state == cri.CONTAINER_RUNNING
    reply = await client.exec(container, "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (reply.stdout, reply.stderr, reply.exit_code) == (b"out\n", b"err\n", 3)
    stats = await client.runtime.ContainerStats(cri.ContainerStatsRequest(container_id=container))
    assert stats.stats.memory.working_set_bytes.value > 0
    assert stats.stats.cpu.usage_core_nano_seconds.value > 0
    await client.exec(container, "touch", "/end")
    status = await stage.exited(container)
    assert (status.exit_code, status.reason) == (7, "Error")
    assert status.created_at < status.started_at < status.finished_at <= time.time_ns()
    lines = client.log(pod).read_text().splitlines()
    found = sorted(match.group(2, 3) for line in lines if (match := LOG_LINE.fullmatch(line)))
    assert found == [("stderr", "to-err"), ("stdout", "to-out")] and len(lines) == 2


async def test_container_finds_the_user_resources_and_files_of_its_request(stage: Stage, pod: Pod) -> None:
    security = cri.LinuxContainerSecurityContext(
        run_as_user=cri.Int64Value(value=1234),
        run_as_group=cri.Int64Value(value=2345),
        supplemental_groups=[77],
        readonly_rootfs=True,
        no_new_privs=True,
        namespace_options=cri.NamespaceOption(pid=cri.CONTAINER),
    )
    resources = cri.LinuxContainerResources(memory_limit_in_bytes=64 << 20, cpu_shares=512, oom_score_adj=500)
    container = await stage.started(
        pod,
        "exec sleep 1000",
        linux=cri.LinuxContainerConfig(security_context=security, resources=resources),
        envs=[cri.KeyValue(key="GREETING", value=b"good morning")],
        working_dir="/var",
    )
    assert await stage.output(container, "id -u; id -g; id -G") == "1234\n2345\n2345 77"
    assert await stage.output(container, "pwd; echo $GREETING; hostname") == "/var\ngood morning\nstory"
    address = await stage.address(pod)
    assert f"{address}\tstory" in await stage.output(container, "cat /etc/hosts")
    assert await stage.output(container, "cat /etc/hostname") == "story"
    assert address in await stage.output(container, "ip addr show eth0")
    assert await stage.output(container, "cat /proc/1/oom_score_adj") == "500"
    assert "NoNewPrivs:\t1" in await stage.output(container, "cat /proc/self/status")
    assert await stage.output(container, "touch /x 2>&1 || echo read-only") != ""
    assert await stage.output(container, "test -e /x || echo none") == "none"
    assert await stage.output(container, "cat /proc/1/cmdline | tr '\\0' ' '") == "sleep 1000"


async def test_dns_of_the_pod(stage: Stage) -> None:
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name="dns", namespace="default", uid="dns"),
        dns_config=cri.DNSConfig(servers=["10.96.0.10"], searches=["svc.cluster.local"], options=["ndots:5"]),
    )
    reply = await stage.client.runtime.RunPodSandbox(cri.RunPodSandboxRequest(config=config), timeout=60)
    pod = Pod(reply.pod_sandbox_id, config)
    container = await stage.started(pod, "exec sleep 1000")
    expected = "search svc.cluster.local\nnameserver 10.96.0.10\noptions ndots:5"
    assert await stage.output(container, "cat /etc/resolv.conf") == expected
    await stage.client.remove_pod(pod.id)
    await stage.node.nothing_left()


async def test_network_host_to_pod_and_pod_to_pod(stage: Stage, pod: Pod) -> None:
    serve = "mkdir /srv; echo from-the-zone >/srv/index.html; httpd -p 80 -h /srv; exec sleep 1000"
    container = await stage.started(pod, serve)
    await stage.output(container, "while ! wget -q -O- http://127.0.0.1/; do usleep 10000; done")
    address = await stage.address(pod)
    ping = await asyncio.create_subprocess_exec(
        "ping", "-c", "2", "-W", "30", address, stdout=asyncio.subprocess.DEVNULL
    )
    assert await ping.wait() == 0
    page = await asyncio.to_thread(_get, address, 80)
    assert b"from-the-zone" in page
    other = await stage.client.run_pod("other")
    try:
        caller = await stage.started(other, "exec sleep 1000")
        assert await stage.output(caller, f"wget -q -O- http://{address}/") == "from-the-zone"
        assert "1 packets received" in await stage.output(caller, f"ping -c 1 -W 30 {address}")
    finally:
        await stage.client.remove_pod(other.id)


async def test_containers_of_a_pod_share_its_network(stage: Stage, pod: Pod) -> None:
    await stage.started(pod, "mkdir /s; echo shared >/s/index.html; httpd -f -p 8080 -h /s", "server")
    caller = await stage.started(pod, "exec sleep 1000", "caller")
    fetch = "while ! wget -q -O- http://127.0.0.1:8080/; do usleep 10000; done"
    assert await stage.output(caller, fetch) == "shared"


async def test_exec_beyond_its_timeout_is_killed(stage: Stage, pod: Pod) -> None:
    container = await stage.started(pod, "exec sleep 1000")
    command = ["sh", "-c", "echo $$ >/pid; exec sleep 1001"]
    for seconds in (1, 10, 100):  # until the command has written its pid
        request = cri.ExecSyncRequest(container_id=container, cmd=command, timeout=seconds)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stage.client.runtime.ExecSync(request)
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        if await stage.output(container, "test -s /pid && echo yes || echo no") == "yes":
            break
    gone = "while [ -d /proc/$(cat /pid) ]; do usleep 10000; done; echo gone"
    assert await stage.output(container, gone) == "gone"


@pytest.mark.parametrize("seconds", [1, 3, 20, 0])
async def test_exec_leaving_a_child_behind_has_succeeded(stage: Stage, pod: Pod, seconds: int) -> None:
    """The child holds the output open, whatever the timeout."""
    container = await stage.started(pod, "exec sleep 1000")
    command = ["sh", "-c", "sleep 1000 & echo started"]
    request = cri.ExecSyncRequest(container_id=container, cmd=command, timeout=seconds)
    reply = await stage.client.runtime.ExecSync(request)
    assert (reply.exit_code, reply.stdout, reply.stderr) == (0, b"started\n", b"")


async def test_out_of_memory_is_told_apart(stage: Stage, pod: Pod) -> None:
    limit = cri.LinuxContainerConfig(resources=cri.LinuxContainerResources(memory_limit_in_bytes=8 << 20))
    container = await stage.started(pod, "exec tail /dev/zero", linux=limit)
    status = await stage.exited(container)
    assert (status.reason, status.exit_code) == ("OOMKilled", 137)


async def test_stop_sends_the_stop_signal(stage: Stage, pod: Pod) -> None:
    script = "trap 'echo caught; exit 4' TERM; echo ready; while :; do usleep 10000; done"
    container = await stage.started(pod, script)
    await _log_says(stage.client.log(pod), "ready")
    await stage.client.runtime.StopContainer(cri.StopContainerRequest(container_id=container, timeout=60))
    assert (await container_status(stage.client, container)).exit_code == 4
    assert "caught" in stage.client.log(pod).read_text()


@pytest.mark.parametrize("mode", [cri.POD, cri.CONTAINER])
async def test_processes_end_with_their_container(
    stage: Stage, pod: Pod, mode: cri.NamespaceMode.ValueType
) -> None:
    """Also processes that hold the output open, and processes in the pod's shared process namespace."""
    options = cri.NamespaceOption(pid=mode)
    security = cri.LinuxContainerSecurityContext(namespace_options=options)
    watcher = await stage.started(pod, "exec sleep 1000", "watcher")
    script = "sleep 1002 & echo begun; exit 6"
    linux = cri.LinuxContainerConfig(security_context=security)
    container = await stage.started(pod, script, linux=linux)
    status = await stage.exited(container)
    assert (status.exit_code, stage.client.log(pod).read_text().split()[3]) == (6, "begun")
    seen = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f; echo; done 2>/dev/null"
    # The kill has been sent; the kernel carries it out in its own time.

    async def gone() -> bool:
        return "sleep 1002" not in await stage.output(watcher, seen)

    await until(gone)


async def test_pods_share_processes_when_asked(stage: Stage, pod: Pod) -> None:
    """CRI's default; the kubelet asks for CONTAINER unless the pod shares its process namespace."""
    await stage.started(pod, "exec sleep 1003", "other")
    watcher = await stage.started(pod, "exec sleep 1000", "watcher")
    assert "sleep 1003" in await stage.output(watcher, "ps -o args")


async def test_missing_command_ends_its_container_at_start(stage: Stage, pod: Pod) -> None:
    """The pod can be removed with the container, and has memory for the next try."""
    container = await stage.client.create(pod, stage.image, ["/no/such/command"])
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stage.client.start(container)
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "/no/such/command" in (raised.value.details() or "")
    assert (await stage.exited(container)).reason == "StartError"
    await stage.started(pod, "exec sleep 1000", "other")
    reply = await stage.client.runtime.ListContainers(cri.ListContainersRequest())
    states = {item.metadata.name: item.state for item in reply.containers}
    assert states == {"main": cri.CONTAINER_EXITED, "other": cri.CONTAINER_RUNNING}


async def test_a_log_is_rotated(stage: Stage, pod: Pod) -> None:
    container = await stage.started(pod, "echo one; while [ ! -e /go ]; do usleep 10000; done; echo two")
    log = stage.client.log(pod)
    await _log_says(log, "one")
    log.rename(log.with_suffix(".old"))
    await stage.client.runtime.ReopenContainerLog(cri.ReopenContainerLogRequest(container_id=container))
    await stage.client.exec(container, "touch", "/go")
    await stage.exited(container)
    assert "two" in log.read_text() and "one" not in log.read_text()


async def test_fifty_pods_at_once(stage: Stage) -> None:
    pods = await asyncio.gather(*(stage.client.run_pod(f"many-{n}") for n in range(50)))
    containers = await asyncio.gather(*(stage.started(pod, "exec sleep 1000") for pod in pods))
    addresses = await asyncio.gather(*(stage.address(pod) for pod in pods))
    assert len(set(addresses)) == 50
    names = await asyncio.gather(*(stage.output(container, "hostname") for container in containers))
    assert sorted(names) == sorted(f"many-{n}" for n in range(50))
    await asyncio.gather(*(stage.client.remove_pod(pod.id) for pod in pods))
    assert await stage.client.pods() == []
    await stage.node.nothing_left()


async def test_a_pod_without_network_configuration(stage: Stage) -> None:
    conflist = next(stage.node.conf_dir.iterdir())
    away = stage.node.folder / conflist.name
    conflist.rename(away)
    try:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stage.client.run_pod("lonely")
        assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "no network configuration" in (raised.value.details() or "")
        reply = await stage.client.runtime.Status(cri.StatusRequest())
        conditions = {condition.type: condition.status for condition in reply.status.conditions}
        assert {kind for kind, met in conditions.items() if not met} == {"NetworkReady", "ZoneModePreferred"}
        await stage.node.nothing_left()
    finally:
        away.rename(conflist)
    pod = await stage.client.run_pod("lonely")  # read again without a restart
    await stage.client.remove_pod(pod.id)


async def _log_says(log: Path, word: str) -> None:
    await until(lambda: log.exists() and word in log.read_text())


def _get(address: str, port: int) -> bytes:
    with socket.create_connection((address, port), timeout=60) as link:
        link.sendall(b"GET / HTTP/1.0\r\n\r\n")
        page = b""
        while chunk := link.recv(65536):
            page += chunk
    return page
