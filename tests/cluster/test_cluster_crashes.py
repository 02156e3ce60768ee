"""Daemons that are killed under pods of a real kubelet."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.cluster.cluster import Cluster
from tests.support.cluster.programs import needs_kubernetes
from tests.support.cri.cri_daemons import needs_node

pytestmark = [pytest.mark.root, needs_node, needs_kubernetes, pytest.mark.asyncio(loop_scope="session")]

COUNTS = "n=0; while :; do n=$((n+1)); echo $n; sleep 0.05; done"
PODS = [f"counter-{number}" for number in range(5)]


async def test_no_container_restarts_when_both_daemons_are_killed(cluster: Cluster) -> None:
    for name in PODS:
        await cluster.create(name, "sh", "-c", COUNTS, restartPolicy="Always")
    before = [identity(pod) for pod in await cluster.started(*PODS)]
    assert {restarts for _, restarts in before} == {0}
    said = {name: len(lines(await logged(cluster, name, 0))) for name in PODS}
    cri, protectd = cluster.node.daemon, cluster.node.protectd.daemon
    await asyncio.gather(cri.crash(), protectd.crash())
    await protectd.start()
    await cri.start()
    for name in PODS:
        counted = lines(await logged(cluster, name, said[name] + 40))
        assert counted == list(range(1, len(counted) + 1)), "no line is lost or repeated"
    assert await cluster.exec(PODS[0], "echo", "hello") == "hello\n"
    assert [identity(pod) for pod in await cluster.started(*PODS)] == before


async def logged(cluster: Cluster, name: str, count: int) -> str:
    """The log of a pod, once the log has more than ``lines`` lines."""
    return await cluster.logged(name, lambda log: len(lines(log)) > count)


def lines(log: str) -> list[int]:
    """The complete lines of a text."""
    return [int(line) for line in log[: log.rfind("\n") + 1].split()]


def identity(pod: dict[str, object]) -> tuple[str, int]:
    """The identity of a pod's container, which must not change."""
    (status,) = pod["status"]["containerStatuses"]  # type: ignore[index]
    return status["containerID"], status["restartCount"]
