"""Events of refused claims: on the claim and its pods, once, and bounded in number."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from cluster.dra.claims.claim import Consumer, WantedClaim
from cluster.dra.config import ClaimSizes
from cluster.dra.kube.claim_events import RefusalEvents
from tests.support.dra.api_server import Cluster, serving
from tests.support.labels.api_server import NAME, kubeconfig
from tests.support.waiting import until

DRIVER = "zones.xenpod.dev"
WANTED = WantedClaim("default", "zone", "uid-1", DRIVER, NAME, ClaimSizes())
POD = Consumer("web", "uid-of-web")


async def written(cluster: Cluster, events: RefusalEvents, count: int) -> None:
    """Have ``count`` events written, until none waits."""
    task = asyncio.ensure_future(events.run())
    try:
        await until(lambda: len(cluster.events) >= count and events._queue.empty())
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_refusal_is_an_event_of_the_claim_and_of_its_pods(tmp_path: Path) -> None:
    cluster = Cluster()
    with serving(cluster) as url:
        events = RefusalEvents(kubeconfig(tmp_path / "kubeconfig", url), DRIVER, NAME)
        for _ in range(3):  # the kubelet tries again
            events.tell(WANTED, [POD], "it is too large, \N{DEGREE SIGN}" + "x" * 2000)
        events.tell(WANTED, [], "another cause")
        await written(cluster, events, 3)
    claim, pod, other = cluster.events
    assert [one["regarding"]["kind"] for one in cluster.events] == ["ResourceClaim", "Pod", "ResourceClaim"]
    assert (claim["regarding"]["uid"], pod["regarding"]["uid"]) == ("uid-1", "uid-of-web")
    assert claim["type"] == "Warning" and claim["reportingController"] == DRIVER
    assert claim["note"].startswith("it is too large") and len(claim["note"].encode()) <= 1024
    assert other["note"] == "another cause"
    assert len({one["metadata"]["name"] for one in cluster.events}) == 3


async def test_many_bad_claims_make_a_bounded_number_of_events(tmp_path: Path) -> None:
    cluster = Cluster()
    with serving(cluster) as url:
        events = RefusalEvents(kubeconfig(tmp_path / "kubeconfig", url), DRIVER, NAME)
        for number in range(1000):
            events.tell(WANTED, [POD] * 256, f"cause {number}")
        await written(cluster, events, 25)
    assert 25 <= len(cluster.events) < 60


async def test_a_refused_event_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(refusal=(403, "no such right"))
    with serving(cluster) as url:
        events = RefusalEvents(kubeconfig(tmp_path / "kubeconfig", url), DRIVER, NAME)
        events.tell(WANTED, [], "first")
        task = asyncio.ensure_future(events.run())
        await until(lambda: "the right to create events" in caplog.text)
        cluster.refusal = None
        events.tell(WANTED, [], "second")
        await until(lambda: cluster.events)
        task.cancel()
    assert [one["note"] for one in cluster.events] == ["second"]
