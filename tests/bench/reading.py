"""Measures the kubelet's polling on each side: lists and statistics of many pods."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sized
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

from tests.bench.measure import Crowd, Samples
from tests.bench.sides import Side
from tools.localnode.cri_client import Client
from xenpod_proto.cri.v1 import runtime_pb2 as pb

_ROUNDS = 300
_SLOW_ROUNDS = 20
_WARM_UP = 3
_TIMEOUT = 60.0
_CGROUPS = Path("/sys/fs/cgroup")

Read = Callable[[Client, str], Awaitable[object]]
"""Makes a call, from the client and a container's id."""

READS: Mapping[str, Read] = {
    "ListPodSandbox": lambda client, _: client.runtime.ListPodSandbox(
        pb.ListPodSandboxRequest(), timeout=_TIMEOUT
    ),
    "ListContainers": lambda client, _: client.runtime.ListContainers(
        pb.ListContainersRequest(), timeout=_TIMEOUT
    ),
    "ContainerStatus": lambda client, container: client.runtime.ContainerStatus(
        pb.ContainerStatusRequest(container_id=container), timeout=_TIMEOUT
    ),
    "ListContainerStats": lambda client, _: client.runtime.ListContainerStats(
        pb.ListContainerStatsRequest(), timeout=_TIMEOUT
    ),
    "ListPodSandboxStats": lambda client, _: client.runtime.ListPodSandboxStats(
        pb.ListPodSandboxStatsRequest(), timeout=_TIMEOUT
    ),
}


_SLOW = frozenset({"ListContainerStats", "ListPodSandboxStats"})


async def measure(running: Mapping[str, Side], images: Mapping[str, str], pods: int) -> dict[str, Samples]:
    """Seconds of each call with ``pods`` pods of one container; the sides take turns, call by call: no call
    finds caches of another kind of call.
    """
    samples = {name: Samples() for name in running}
    async with AsyncExitStack() as stack:
        for name, side in running.items():
            # without a group for the pod containerd has no statistics of the pod
            parent = f"/xenpod-bench-{uuid4().hex[:12]}"
            stack.callback(_remove_groups, parent)
            crowd = Crowd(side.client, images[name], pods, parent)
            stack.push_async_callback(crowd.stop)
            await crowd.start()
        first = {name: await _some_container(side.client) for name, side in running.items()}
        for step, read in READS.items():
            for number in range(-_WARM_UP, _SLOW_ROUNDS if step in _SLOW else _ROUNDS):
                for name, side in running.items():
                    kept = samples[name] if number >= 0 else Samples()
                    await kept.time(step, read(side.client, first[name]))
        await _check(running, pods)
    return samples


def _remove_groups(parent: str) -> None:
    """Remove the control groups in place of the kubelet."""
    for top in _CGROUPS.glob(f"*{parent}"):
        for group in sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True):
            group.rmdir()
        top.rmdir()


async def _some_container(client: Client) -> str:
    found = await client.runtime.ListContainers(pb.ListContainersRequest(), timeout=_TIMEOUT)
    return found.containers[0].id


async def _check(running: Mapping[str, Side], pods: int) -> None:
    """Check that the answers are complete; otherwise the figure would not count."""
    for name, side in running.items():
        runtime = side.client.runtime
        answers: dict[str, Sized] = {
            "sandboxes": (await runtime.ListPodSandbox(pb.ListPodSandboxRequest())).items,
            "containers": (await runtime.ListContainers(pb.ListContainersRequest())).containers,
            "container stats": (await runtime.ListContainerStats(pb.ListContainerStatsRequest())).stats,
            "pod stats": (await runtime.ListPodSandboxStats(pb.ListPodSandboxStatsRequest())).stats,
        }
        for kind, items in answers.items():
            if len(items) != pods:
                raise RuntimeError(f"{name} has {len(items)} {kind} of {pods} pods")
