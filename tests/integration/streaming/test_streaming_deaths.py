"""Commands that are cut off because a daemon or their zone ended: no client is told of success."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping

import grpc.aio
import pytest

from tests.support.cri.conformance import crash_zone
from tests.support.cri.cri_daemons import needs_node
from tests.support.cri.stage import Stage
from tools.localnode.cri_client import Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [
    pytest.mark.root,
    needs_node,
    pytest.mark.skipif(shutil.which("crictl") is None, reason="crictl is not on PATH"),
    pytest.mark.asyncio(loop_scope="module"),
]

PIPE = asyncio.subprocess.PIPE
SCRIPT = "echo up; exec sleep 100000"
PATIENCE = 60.0


async def crictl(stage: Stage, *arguments: str) -> asyncio.subprocess.Process:
    """A client of Kubernetes' own."""
    line = stage.crictl(*arguments)
    return await asyncio.create_subprocess_exec(*line, stdin=PIPE, stdout=PIPE, stderr=PIPE)


async def echoing(stage: Stage) -> tuple[Pod, str]:
    """A pod with a container that repeats its input; the container's id."""
    pod = await stage.client.run_pod("web")
    return pod, await stage.started(pod, "while read -r line; do echo $line; done", stdin=True)


async def _crash_zone(stage: Stage, pod: Pod) -> None:
    crash_zone(stage.node, pod)


async def _kill_protectd(stage: Stage, pod: Pod) -> None:
    await stage.node.protectd.daemon.crash()


async def _stop_protectd(stage: Stage, pod: Pod) -> None:
    await stage.node.protectd.daemon.stop()


async def _kill_cri(stage: Stage, pod: Pod) -> None:
    await stage.node.daemon.crash()


async def _stop_cri(stage: Stage, pod: Pod) -> None:
    await stage.node.daemon.stop()


DEATHS: Mapping[str, Callable[[Stage, Pod], Awaitable[None]]] = {
    "zone crashed": _crash_zone,
    "protectd killed": _kill_protectd,
    "protectd stopped": _stop_protectd,
    "xenpod-cri killed": _kill_cri,
    "xenpod-cri stopped": _stop_cri,
}


async def first_line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        return await process.stdout.readline()


@pytest.mark.parametrize("transport", ["spdy", "websocket"])
@pytest.mark.parametrize("death", DEATHS)
async def test_no_client_takes_a_death_for_success(stage: Stage, transport: str, death: str) -> None:
    pod, container = await echoing(stage)
    executed = await crictl(stage, "exec", "--transport", transport, container, "sh", "-c", SCRIPT)
    attached = await crictl(stage, "attach", "--transport", transport, "-i", container)
    assert await first_line(executed) == b"up\n"
    assert attached.stdin is not None
    attached.stdin.write(b"here\n")
    assert await first_line(attached) == b"here\n"
    await DEATHS[death](stage, pod)
    for process in (executed, attached):
        async with asyncio.timeout(PATIENCE):
            _, err = await process.communicate()
        assert process.returncode == 1, err
        assert err


@pytest.mark.parametrize("death", DEATHS)
async def test_an_exec_sync_fails(stage: Stage, death: str) -> None:
    """A retry may succeed, except in an ended zone."""
    client = stage.client
    pod, container = await echoing(stage)
    request = cri.ExecSyncRequest(container_id=container, cmd=["sh", "-c", ": >/up; sleep 100000"])
    call = client.runtime.ExecSync(request, timeout=PATIENCE)
    there = "until [ -e /up ]; do usleep 10000; done"
    assert (await client.exec(container, "sh", "-c", there)).exit_code == 0
    dying = asyncio.ensure_future(DEATHS[death](stage, pod))
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    await dying
    wanted = {grpc.StatusCode.UNAVAILABLE}
    if death == "zone killed":
        wanted = {grpc.StatusCode.FAILED_PRECONDITION}
    if death == "zone crashed":  # the channel may end before the domain does
        wanted.add(grpc.StatusCode.FAILED_PRECONDITION)
    assert failed.value.code() in wanted, failed.value.details()
