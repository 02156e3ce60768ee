"""ExecSync: each namespace has a share of the calls, and of the memory for their output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from cri.container import execsync
from tests.support.cri.cri_node import Rig, rig
from tests.support.waiting import until
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

EXIT = pb.ExecOutput(exit=pb.ProcessExit(exit_code=0))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


@pytest.fixture
async def pod(node: Rig, tmp_path: Path) -> str:
    return await node.pod(log_directory=str(tmp_path / "logs"))


def _metadata(name: str, namespace: str) -> cri.PodSandboxMetadata:
    return cri.PodSandboxMetadata(name=name, namespace=namespace, uid=f"uid-{name}")


async def test_exec_output_takes_and_returns_its_namespaces_share_of_memory(node: Rig, pod: str) -> None:
    """All 20 MiB have come, without an end: the held bytes show."""
    container = await node.started(pod)
    other = await node.started(await node.pod(metadata=_metadata("other", "elsewhere")))
    chunk, free = b"x" * (1 << 20), node.daemon.containers.exec_sync.memory.free
    end = node.protect.stalls["ExecEnd"] = asyncio.Event()
    node.protect.exec_outputs = [pb.ExecOutput(stdout=chunk) for _ in range(20)]
    node.protect.exec_outputs.append(pb.ExecOutput(exit=pb.ProcessExit(exit_code=3)))
    calls = [
        asyncio.ensure_future(node.cri.ExecSync(cri.ExecSyncRequest(container_id=one, cmd=["yes"])))
        for one in (container, container, other)
    ]
    await until(lambda: node.protect.calls.count("ExecEnd") == len(calls))
    await until(
        lambda: (
            node.daemon.containers.exec_sync.memory.held("default") > 0
            and node.daemon.containers.exec_sync.memory.held("elsewhere") > 0
        )
    )
    assert (
        node.daemon.containers.exec_sync.memory.free >= 0
        and node.daemon.containers.exec_sync.memory.held("default") <= free // 2
    )
    end.set()
    replies = await asyncio.gather(*calls)
    # Cut off, but none failed, and each has enough for a probe.
    assert [reply.exit_code for reply in replies] == [3, 3, 3]
    kept = sum(len(reply.stdout) for reply in replies)
    assert kept * execsync.COPIES <= free + len(replies) * execsync.COPIES * execsync.OUTPUT_FLOOR_BYTES
    assert min(len(reply.stdout) for reply in replies) >= execsync.OUTPUT_FLOOR_BYTES
    await until(lambda: node.daemon.containers.exec_sync.memory.free == free)


async def test_a_namespace_without_a_share_left_still_gets_the_floor(node: Rig, pod: str) -> None:
    container = await node.started(pod)
    node.protect.exec_outputs = [
        pb.ExecOutput(stdout=b"x" * 10_000),
        pb.ExecOutput(stderr=b"y" * 10_000),
        pb.ExecOutput(stdout=b"later"),
        EXIT,
    ]
    while node.daemon.containers.exec_sync.memory.take("default", 1 << 10):
        pass
    reply = await node.cri.ExecSync(cri.ExecSyncRequest(container_id=container, cmd=["x"]))
    assert (reply.stdout, reply.stderr) == (b"x" * 10_000, b"y" * (execsync.OUTPUT_FLOOR_BYTES - 10_000))


async def test_execs_of_a_gone_client_hold_no_memory(node: Rig, pod: str) -> None:
    container = await node.started(pod)
    free, calls = node.daemon.containers.exec_sync.memory.free, node.daemon.containers.exec_sync.calls.free
    node.protect.stalls["ExecEnd"] = asyncio.Event()
    node.protect.exec_outputs = [pb.ExecOutput(stdout=b"x" * (1 << 20)), EXIT]
    call = node.cri.ExecSync(cri.ExecSyncRequest(container_id=container, cmd=["x"]))
    await until(lambda: node.daemon.containers.exec_sync.memory.free < free)
    call.cancel()
    await until(
        lambda: (
            (node.daemon.containers.exec_sync.memory.free, node.daemon.containers.exec_sync.calls.free)
            == (free, calls)
        )
    )


async def test_only_a_namespace_with_a_full_share_of_exec_calls_is_refused(node: Rig, pod: str) -> None:
    mine = await node.started(pod)
    other = await node.started(await node.pod(metadata=_metadata("other", "elsewhere")))
    while node.daemon.containers.exec_sync.calls.take("default"):
        pass
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.cri.ExecSync(cri.ExecSyncRequest(container_id=mine, cmd=["x"]))
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "namespace default has 512 calls of ExecSync under way" in (raised.value.details() or "")
    assert (await node.cri.ExecSync(cri.ExecSyncRequest(container_id=other, cmd=["x"]))).exit_code == 0
