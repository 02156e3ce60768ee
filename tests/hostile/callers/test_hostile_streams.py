"""Hostile clients of exec and port-forward beside the calls of others, on both real daemons."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import grpc
import grpc.aio
import pytest

from cri.streaming.server import MOST_URLS_OF_POD
from tests.support.cri.cri_daemons import needs_node
from tests.support.cri.hostile_streams import FLOODS, Flood, attack, begin
from tests.support.cri.stage import Stage, StageSettings
from tests.support.cri.stream_client import Line, spdy
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="module")]

CLIENTS = 8
SECONDS = 60.0
CALLS = 40
OF_POD = 16
IDLE = Flood(b"")


@pytest.fixture(scope="module")
def stage_settings() -> StageSettings:
    return StageSettings({"streaming": {"connections_per_pod": OF_POD}})


@contextlib.asynccontextmanager
async def flooded(stage: Stage, kinds: Sequence[str]) -> AsyncIterator[list[Line]]:
    """Clients of a separate hostile pod for each kind; all have begun to send."""
    lines: list[Line] = []
    attacks: list[asyncio.Future[None]] = []
    try:
        for number, kind in enumerate(kinds):
            pod = await stage.client.run_pod(f"hostile-{number}")
            container = await stage.started(pod, "sleep 36000")
            for _ in range(CLIENTS):
                lines.append(line := await begin(stage.client, pod.id, container, FLOODS[kind]))
                sent = asyncio.Event()
                attacks.append(asyncio.ensure_future(attack(line, FLOODS[kind], sent.set)))
                await sent.wait()
        yield lines
        assert not any(one.done() for one in attacks), "they are slowed down, not cut off"
    finally:
        for one in attacks:
            one.cancel()
        await asyncio.gather(*attacks, return_exceptions=True)


@pytest.mark.parametrize(
    "kinds",
    [
        ("pings", "settings"),
        ("headers", "header bombs"),
        ("empty messages", "WebSocket pings"),
        ("one-byte stdin", "one-byte messages"),
        ("sizes",),
    ],
    ids=lambda kinds: kinds[0],
)
async def test_small_frames_without_end_delay_no_call(stage: Stage, kinds: Sequence[str]) -> None:
    """Earlier, each of these clients delayed each Version by up to 8 s: 40 calls did not end in a minute."""
    pod = await stage.client.run_pod("honest")
    container = await stage.started(pod, "sleep 36000")
    async with flooded(stage, kinds), asyncio.timeout(SECONDS):
        for _ in range(CALLS):
            await stage.client.runtime.Version(cri.VersionRequest())
        assert (await stage.client.exec(container, "echo", "there")).stdout == b"there\n"
        await stage.client.run_pod("another")


async def test_idle_streams_of_a_pod_refuse_the_pods_own_streams_alone(stage: Stage) -> None:
    hostile, honest = await stage.client.run_pod("hostile"), await stage.client.run_pod("honest")
    container = await stage.started(honest, "sleep 36000")
    held = [await begin(stage.client, hostile.id, "", IDLE) for _ in range(OF_POD)]
    words = f"has {OF_POD} streams, as many as streaming.connections_per_pod allows"
    with pytest.raises(ConnectionRefusedError, match=words):
        await begin(stage.client, hostile.id, "", IDLE)
    asked = cri.ExecRequest(container_id=container, cmd=["echo", "there"], stdout=True)
    url = (await stage.client.runtime.Exec(asked)).url
    client = await spdy("/".join(url.split("/")[:3]), url)
    await client.open_all("error", "stdout")
    await client.finished("error", "stdout")
    assert client.text("stdout") == b"there\n"
    for line in held:
        line.abort()


@pytest.mark.parametrize("kind", ["settings", "pings"])
async def test_port_forwards_end_with_their_pod_however_much_waits_to_be_read(
    stage: Stage, kind: str
) -> None:
    """The server reads this client slowly. Before, the connection stayed for half an hour."""
    pod = await stage.client.run_pod("hostile")
    line, sent = await begin(stage.client, pod.id, "", FLOODS[kind]), asyncio.Event()
    attacking = asyncio.ensure_future(attack(line, FLOODS[kind], sent.set))
    await sent.wait()
    await stage.client.remove_pod(pod.id)
    async with asyncio.timeout(SECONDS):
        await attacking


async def test_unused_urls_of_a_pod_leave_the_urls_of_other_pods(stage: Stage) -> None:
    hostile, honest = await stage.client.run_pod("hostile"), await stage.client.run_pod("honest")
    container = await stage.started(honest, "sleep 36000")
    runtime = stage.client.runtime
    asked = cri.ExecRequest(container_id=container, cmd=["echo", "there"], stdout=True)
    url = (await runtime.Exec(asked)).url
    request = cri.PortForwardRequest(pod_sandbox_id=hostile.id, port=[80])
    for _ in range(MOST_URLS_OF_POD - 1):
        await runtime.PortForward(request)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        for _ in range(2):
            await runtime.PortForward(request)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"pod {hostile.id} has {MOST_URLS_OF_POD} unused URLs" in str(refused.value.details())
    client = await spdy("/".join(url.split("/")[:3]), url)
    await client.open_all("error", "stdout")
    await client.finished("error", "stdout")
    assert client.text("stdout") == b"there\n"
