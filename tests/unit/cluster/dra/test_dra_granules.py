"""Granules of zone memory: which are healthy, and whose reservations they are, whatever the kubelet does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from daemonkit.faults import Exhausted, Unreachable
from dra.granules import holdings
from dra.granules.devices import MOST, granules, reservation_id
from dra.granules.holdings import Holdings
from dra.granules.kubelet import Holder
from dra.model import HostMemory, Promise

SIZE = 64
ONE, TWO, THREE = "granule-00000", "granule-00001", "granule-00002"


@dataclass
class Node:
    """protectd's ledger, the kubelet and the API server, as far as granules know them."""

    room: int = 3
    ledger: dict[str, Promise] = field(default_factory=dict)
    pods: list[Holder] = field(default_factory=list)
    uids: dict[str, str] = field(default_factory=dict)
    away: bool = False
    rounds: asyncio.Queue[None] = field(default_factory=asyncio.Queue)

    async def make(self, wanted: Promise) -> None:
        there = self.ledger.get(wanted.claim_uid)
        held = sum(one.total_bytes for one in self.ledger.values())
        if there is None and held + wanted.total_bytes > self.room * SIZE:
            raise Exhausted("make reservation", wanted.claim_uid, "it does not fit")
        pods = tuple(dict.fromkeys((*(there.pod_uids if there else ()), *wanted.pod_uids)))
        self.ledger[wanted.claim_uid] = Promise(wanted.claim_uid, wanted.total_bytes, pods)

    async def release(self, claim_uid: str) -> None:
        self.ledger.pop(claim_uid, None)

    async def all(self) -> tuple[Promise, ...]:
        return tuple(self.ledger.values())

    async def holders(self) -> list[Holder]:
        if self.away:
            raise Unreachable("list resources of", "pods", "the kubelet is away")
        return list(self.pods)

    async def uid(self, namespace: str, name: str) -> str | None:
        return self.uids.get(f"{namespace}/{name}")

    async def changed(self) -> None:
        self.rounds.put_nowait(None)

    def run(self, name: str, *names: str) -> None:
        self.pods.append(Holder("default", name, names))
        self.uids[f"default/{name}"] = f"uid-{name}"

    async def seen(self) -> None:
        """Wait until the kubelet has been asked once more, from now on."""
        while not self.rounds.empty():
            self.rounds.get_nowait()
        for _ in range(2):  # the first may have begun before
            await self.rounds.get()


@asynccontextmanager
async def keeping(node: Node) -> AsyncIterator[Holdings]:
    made = Holdings(SIZE, node, node.holders, node, node.changed)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        work = tasks.create_task(made.keep(0.001))
        yield made
        work.cancel()


async def test_what_is_given_away_is_reserved_at_once_and_bound_when_its_pod_is_known() -> None:
    node = Node()
    async with keeping(node) as held:
        await held.allocate((TWO, ONE))
        [one] = node.ledger.values()
        assert (one.claim_uid, one.total_bytes, one.pod_uids) == (reservation_id((ONE, TWO)), 2 * SIZE, ())
        await node.seen()
        assert list(node.ledger.values()) == [one], "no pod has shown up yet, and it is kept"
        node.run("web", ONE, TWO)
        await node.seen()
        assert node.ledger[one.claim_uid].pod_uids == ("uid-web",)
        assert held.granules == {ONE, TWO}


async def test_what_the_kubelet_takes_back_is_released() -> None:
    node = Node(ledger={"of-a-claim": Promise("of-a-claim", SIZE, ("other",))})
    async with keeping(node) as held:
        await held.allocate((ONE,))
        node.run("web", ONE)
        await node.seen()
        node.pods.clear()
        await node.seen()
        assert set(node.ledger) == {"of-a-claim"} and held.granules == frozenset()


async def test_a_new_driver_finds_what_the_last_one_made_or_did_not() -> None:
    stale, made, missed = (reservation_id([name]) for name in (ONE, TWO, THREE))
    node = Node(ledger={one: Promise(one, SIZE, ()) for one in (stale, made)})
    node.run("made", TWO)
    node.run("missed", THREE)
    async with keeping(node):
        await node.seen()
    assert {one: promise.pod_uids for one, promise in node.ledger.items()} == {
        made: ("uid-made",),
        missed: ("uid-missed",),
    }


async def test_while_the_kubelet_is_away_nothing_is_released() -> None:
    node = Node()
    async with keeping(node) as held:
        await held.allocate((ONE,))
        node.run("web", ONE)
        await node.seen()
        node.away = True
        await node.seen()
        assert len(node.ledger) == 1


async def test_a_pod_that_the_kubelet_has_refused_afterwards_loses_its_granules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(holdings, "_PATIENCE", 0.0)
    node = Node()
    async with keeping(node) as held:
        await held.allocate((ONE,))
        await node.seen()
        assert node.ledger == {}


async def test_granules_that_are_given_away_anew_were_taken_back() -> None:
    node = Node()
    async with keeping(node) as held:
        await held.allocate((ONE, TWO))  # its pod is never seen
        await held.allocate((ONE,))
        await node.seen()
        assert set(node.ledger) == {reservation_id([ONE])}


async def test_the_next_pod_with_the_same_granules_gets_a_reservation_of_its_own() -> None:
    """The kubelet gives them away before anybody has asked it whether the last pod has ended."""
    node = Node()
    async with keeping(node) as held:
        await held.allocate((ONE,))
        node.run("first", ONE)
        await node.seen()
        node.pods.clear()
        await held.allocate((ONE,))
        node.run("second", ONE)
        await node.seen()
        assert [one.pod_uids for one in node.ledger.values()] == [("uid-second",)]


class Killed(Exception):
    """Stands for SIGKILL: nothing of the driver runs after it."""


@pytest.mark.parametrize(
    "step",
    [
        "granules-allocate.released",
        "granules-allocate.reserved",
        "granules-follow.released",
        "granules-follow.bound",
    ],
)
async def test_a_kill_at_any_step_loses_and_doubles_nothing(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """One pod has ended, and one begins: afterwards the ledger has what the kubelet says and no more."""
    reached: list[str] = []

    def checkpoint(name: str) -> None:
        reached.append(name)
        if name == step:
            raise Killed

    ended = reservation_id([TWO])
    node = Node(ledger={ended: Promise(ended, SIZE, ("uid-ended",))})
    monkeypatch.setattr(holdings, "checkpoint", checkpoint)
    try:
        async with keeping(node) as held:
            await held.allocate((ONE,))
            node.run("web", ONE)
            await node.seen()
    except* Killed:
        monkeypatch.setattr(holdings, "checkpoint", lambda name: None)
    assert reached[-1] == step
    async with keeping(node) as held:
        if "allocate" in step:  # the kubelet got no answer, and asks for the next pod
            await held.allocate((ONE,))
            node.run("web", ONE)
        await node.seen()
    assert {one: promise.pod_uids for one, promise in node.ledger.items()} == {
        reservation_id([ONE]): ("uid-web",)
    }


async def test_what_does_not_fit_is_refused_and_not_kept() -> None:
    node = Node(room=1)
    async with keeping(node) as held:
        with pytest.raises(Exhausted):
            await held.allocate((ONE, TWO))
        assert held.granules == frozenset() and node.ledger == {}


def test_as_many_are_healthy_as_there_is_memory_for() -> None:
    assert granules(HostMemory(4 * SIZE, 2 * SIZE + 1), SIZE, ()) == {
        ONE: True,
        TWO: True,
        THREE: False,
        "granule-00003": False,
    }


def test_those_that_containers_have_are_healthy_before_others() -> None:
    assert granules(HostMemory(3 * SIZE, SIZE), SIZE, {THREE}) == {ONE: False, TWO: False, THREE: True}
    assert granules(HostMemory(SIZE, SIZE), SIZE, {THREE}) == {ONE: False, THREE: True}


def test_none_is_healthy_while_protectd_is_away() -> None:
    assert granules(None, SIZE, {ONE}) == {ONE: False}


def test_there_are_no_more_than_the_kubelet_can_be_told() -> None:
    assert len(granules(HostMemory(1 << 50, 1 << 50), 1 << 20, ())) == MOST


def test_a_reservation_is_named_by_its_granules_in_any_order() -> None:
    assert reservation_id((ONE, TWO)) == reservation_id((TWO, ONE, ONE)) != reservation_id((ONE,))
    assert len(reservation_id(())) <= 64
