"""Pods whose commands write much, or never end: their cost in dom0's memory, and in other pods' calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc
import pytest

from cri.container.execsync import MEMORY_BUDGET_BYTES
from daemonkit.rpc.channels import channel
from tests.support.cri.cri_daemons import CriNode, needs_node, pulled
from tests.support.protect.daemons import Daemon
from tests.support.waiting import until
from tools.localnode.cri_client import Client
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.cri.v1.runtime_pb2_grpc import RuntimeServiceStub

pytestmark = [pytest.mark.root, needs_node]
MIB = 1 << 20
EACH = 12
"""Concurrent probes in each container: with 16 MiB each they took 400 MiB for a container."""
BOTH_MOST = 512 * MIB
"""Both daemons together, under any load of tenants; see MemoryMax of the units."""
BACK = 24 * MIB
"""How much larger than before a daemon may stay: caches that grow once."""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[CriNode]:
    made = CriNode(tmp_path)
    await made.start()
    yield made
    await made.close()


def _memory(daemon: Daemon, key: str) -> int:
    assert daemon.process is not None
    lines = Path(f"/proc/{daemon.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:")) << 10


async def _started(client: Client, image: str, namespace: str) -> str:
    pod = await client.run_pod(f"pod-{namespace}", namespace=namespace)
    container = await client.create(pod, image, ["/bin/sleep", "100000"])
    await client.start(container)
    return container


async def _exec(node: CriNode, container: str, command: Sequence[str]) -> cri.ExecSyncResponse:
    """Over a connection of its own, as each of the kubelet's workers has."""
    async with channel(node.daemon.socket) as link:
        request = cri.ExecSyncRequest(container_id=container, cmd=command, timeout=110)
        return await RuntimeServiceStub(link).ExecSync(request, timeout=120)


async def test_probes_with_much_output_take_their_share_of_memory_and_return_the_memory(
    node: CriNode, tmp_path: Path
) -> None:
    both = (node.daemon, node.protectd.daemon)
    much = ["/bin/sh", "-c", "busybox head -c 17000000 /dev/zero; exit 3"]
    async with pulled(node, tmp_path / "store") as image, node.client() as client:
        containers = [await _started(client, image, f"evil-{number}") for number in range(3)]
        honest = await _started(client, image, "honest")
        before = [_memory(daemon, "VmRSS") for daemon in both]
        probes = [asyncio.create_task(_exec(node, one, much)) for one in containers for _ in range(EACH)]
        # An honest probe beside them gets its output.
        assert (await client.exec(honest, "/bin/echo", "here")).stdout == b"here\n"
        replies = await asyncio.gather(*probes)
        # None failed: all were cut off, and each has what the kubelet reads of a probe's output.
        assert {reply.exit_code for reply in replies} == {3}
        assert min(len(reply.stdout) for reply in replies) >= 10 << 10
        peaks = [_memory(daemon, "VmHWM") for daemon in both]
        assert peaks[0] - before[0] <= MEMORY_BUDGET_BYTES + 32 * MIB
        assert sum(peaks) < BOTH_MOST
        sizes = list(zip(both, before, strict=True))
        await until(lambda: all(_memory(one, "VmRSS") <= size + BACK for one, size in sizes), 120)


async def test_pod_with_its_maximum_of_execs_leaves_the_others_theirs(node: CriNode, tmp_path: Path) -> None:
    limit = 4
    await node.protectd.daemon.stop()
    node.protectd.configure(limits={"execs_per_zone": limit})
    await node.protectd.daemon.start()
    await node.daemon.stop()
    await node.daemon.start()
    async with pulled(node, tmp_path / "store") as image, node.client() as client:
        evil, honest = [await _started(client, image, namespace) for namespace in ("evil", "honest")]
        stuck = [asyncio.create_task(_exec(node, evil, ["/bin/sleep", "100"])) for _ in range(limit + 1)]
        # A call finds no place; the other calls do not end.
        ended, _ = await asyncio.wait(stuck, return_when=asyncio.FIRST_COMPLETED, timeout=120)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            ended.pop().result()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"its zone has {limit} execs, as many as it may" in (refused.value.details() or "")
        assert (await client.exec(honest, "/bin/echo", "here")).stdout == b"here\n"
        for each in stuck:
            each.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)
