"""The largest possible node: its lists fit their messages."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri.state.list_capacity import (
    LARGE_BYTES,
    ORDINARY_BYTES,
    SHARE_BYTES,
    TOTAL_BYTES,
    ListEntry,
    check_entry,
)
from daemonkit.faults import Exhausted
from tests.support.cri.cri_node import Rig, rig
from xenpod_proto.cri.v1 import runtime_pb2 as cri

KIB = 1024
_NUMBERS = itertools.count(1)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


async def _pod(node: Rig, namespace: str, size: int) -> str:
    """A pod with annotations of ``size`` bytes."""
    name = f"p{next(_NUMBERS)}"
    metadata = cri.PodSandboxMetadata(name=name, namespace=namespace, uid=name)
    return await node.pod(name, metadata=metadata, annotations={"a": "x" * (size - 1)})


async def _refused(made: Any, *words: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await made
    said = str(caught.value.details())
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "in lists" in said
    assert all(word in said for word in words)


async def test_pods_with_large_annotations_use_up_their_namespaces_share_alone(node: Rig) -> None:
    made = [await _pod(node, "hostile", 255 * KIB) for _ in range(4)]
    await _refused(_pod(node, "hostile", 255 * KIB), "its namespace has", f"at most {SHARE_BYTES}", "shorten")
    made.append(await _pod(node, "hostile", 4 * KIB))
    made.append(await _pod(node, "honest", 255 * KIB))
    assert await node.pods() == made
    await node.cri.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=made[0]))
    await node.cri.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=made[0]))
    await _pod(node, "hostile", 255 * KIB)


async def test_containers_count_with_their_pods_namespace(node: Rig) -> None:
    pod = await _pod(node, "hostile", 255 * KIB)
    large = {"a": "x" * (255 * KIB)}
    for number in range(3):
        await node.container(pod, f"c{number}", annotations=large)
    await _refused(node.container(pod, "c3", annotations=large), "its namespace has")
    other = await _pod(node, "honest", KIB)
    await node.container(other, "c3", annotations=large)


@pytest.mark.slow
async def test_the_largest_node_can_be_listed(node: Rig) -> None:
    """250 pods, including the large pods, and the maximum number of containers."""
    pods = [await _pod(node, f"n{number % 4}", 255 * KIB) for number in range(16)]
    await _refused(_pod(node, "n9", 255 * KIB), "this node has", f"at most {LARGE_BYTES}")
    while len(pods) < 250:
        pods += await asyncio.gather(*(_pod(node, "ordinary", 7 * KIB) for _ in range(26)))
    notes = {"a": "x" * (7 * KIB)}
    containers, refused = 0, 0
    while not refused:
        batch = (node.container(pods[number], f"c{containers}", annotations=notes) for number in range(50))
        for answer in await asyncio.gather(*batch, return_exceptions=True):
            if isinstance(answer, grpc.aio.AioRpcError):
                assert answer.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                refused += 1
            else:
                containers += 1
    assert containers > 1000
    assert len(await node.pods()) == 250
    assert len(await node.containers()) == containers
    stats = await node.cri.ListPodSandboxStats(cri.ListPodSandboxStatsRequest())
    assert len(stats.stats) == 250
    of_containers = await node.cri.ListContainerStats(cri.ListContainerStatsRequest())
    assert len(of_containers.stats) == containers
    streamed = node.cri.StreamPodSandboxes(cri.StreamPodSandboxesRequest())
    assert sum([len(message.pod_sandboxes) async for message in streamed]) == 250


@given(
    st.lists(
        st.builds(ListEntry, st.sampled_from("abcd"), st.integers(0, 600 * KIB)), min_size=1, max_size=300
    )
)
def test_accepted_entries_fit_and_no_namespace_keeps_ordinary_ones_out(asked: list[ListEntry]) -> None:
    accepted: list[ListEntry] = []
    for entry in asked:
        try:
            check_entry("run", "pod", entry, accepted)
        except Exhausted:
            assert (
                entry.large_bytes or sum(one.size_bytes for one in accepted) + entry.size_bytes > TOTAL_BYTES
            )
            continue
        accepted.append(entry)
    assert sum(one.size_bytes for one in accepted) <= TOTAL_BYTES
    assert sum(one.large_bytes for one in accepted) <= LARGE_BYTES
    assert all(one.large_bytes + ORDINARY_BYTES >= one.size_bytes for one in accepted)
