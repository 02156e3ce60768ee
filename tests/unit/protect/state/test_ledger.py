"""The ledger: room left for zones, from promises and the hypervisor's figures."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemonkit.faults import Exhausted
from protect.model.capacity.reservation import Capacity
from protect.state import ledger as ledgers
from protect.state.ledger import Ledger, MemorySample

MIB = 1 << 20


def test_memory_of_others_is_not_promised() -> None:
    """A zone in creation counts as promised, a running zone as taken; foreign domains always count."""
    ledger = Ledger(0, reserve=100)
    ledger.sample(MemorySample(1000, foreign=300, dom0=50))
    ledger.admit("a", 400)
    assert (ledger.total_bytes, ledger.free_bytes) == (900, 500)
    ledger.sample(MemorySample(850, {"a": 150}, foreign=300, dom0=50))  # half built
    assert (ledger.total_bytes, ledger.free_bytes) == (900, 500)
    ledger.sample(MemorySample(500, {"a": 400}, foreign=400, dom0=50))  # and another foreign domain
    assert (ledger.total_bytes, ledger.free_bytes) == (800, 400)
    ledger.release("a")
    assert (ledger.total_bytes, ledger.free_bytes) == (800, 800)
    ledger.sample(MemorySample(100, foreign=1250, dom0=50))
    assert (ledger.total_bytes, ledger.free_bytes) == (0, 0)
    ledger.sample(MemorySample(1300, dom0=100))
    assert ledger.free_bytes == 1200


def test_a_refusal_names_all_who_have_memory() -> None:
    ledger = Ledger(0, reserve=64 * MIB)
    ledger.sample(MemorySample(1024 * MIB, foreign=300 * MIB, dom0=512 * MIB))
    ledger.reserve("claim", 500 * MIB)
    with pytest.raises(Exhausted) as raised:
        ledger.admit("z", 461 * MIB)
    assert raised.value.cause == (
        "it needs 461 MiB, free are 460 MiB of 960 MiB (0 zones and 1 reservations have 500 MiB, "
        "other domains 300 MiB, dom0 512 MiB, kept free are 64 MiB)"
    )
    ledger.admit("z", 460 * MIB)


def test_a_configured_total_is_a_limit_and_the_host_another() -> None:
    ledger = Ledger(500, reserve=100)
    ledger.sample(MemorySample(1000))
    assert ledger.free_bytes == 500
    ledger.sample(MemorySample(400))
    assert ledger.free_bytes == 400


def test_a_zone_lives_from_its_reservation_first() -> None:
    ledger = Ledger(1000)
    ledger.reserve("claim", 400)
    ledger.admit("a", 390, ("claim",))
    assert (ledger.reserved_bytes, ledger.holder("claim")) == (400, "a")
    with pytest.raises(Exhausted, match="zone a has reservation claim"):
        ledger.admit("b", 390, ("claim",))
    ledger.release("a")
    assert (ledger.reserved_bytes, ledger.holder("claim")) == (400, "")
    ledger.admit("b", 450, ("claim",))
    assert ledger.reserved_bytes == 450
    with pytest.raises(Exhausted):
        ledger.admit("c", 551)
    ledger.release_reservation("claim")
    ledger.release_reservation("claim")
    assert (ledger.reserved_bytes, ledger.capacity().reservations) == (450, 0), "b runs and keeps its memory"
    with pytest.raises(Exhausted):
        ledger.reserve("next", 551)
    ledger.reserve("next", 550)


def test_a_full_host_still_has_its_reserve() -> None:
    ledger = Ledger(500)
    ledger.reserve("claim", 400)
    ledger.admit("other", 100)
    ledger.admit("a", 400, ("claim",))
    with pytest.raises(Exhausted):
        ledger.admit("b", 1)


@dataclass
class Host:
    """A hypervisor: domains take their promised memory in steps, and free it at their end."""

    ledger: Ledger
    total: int = 1000
    foreign: int = 0
    held: dict[str, int] = field(default_factory=dict)
    promised: dict[str, int] = field(default_factory=dict)
    reserved: dict[str, int] = field(default_factory=dict)
    seen: dict[str, int] | None = None
    """A sample's reading of domains, before it reads the free memory."""

    @property
    def free(self) -> int:
        return self.total - self.foreign - sum(self.held.values())

    def sample(self) -> None:
        seen = self.held if self.seen is None else self.seen
        known = {zone: size for zone, size in seen.items() if zone in self.promised}
        self.ledger.sample(MemorySample(self.free, dict(known), self.foreign))
        self.seen = None

    def do(self, verb: str, name: str, size: int) -> None:
        match verb:
            case "begin":
                self.seen = dict(self.held)
            case "sample":
                self.sample()
            case "admit" if name not in self.promised:
                claims = (name,) if name in self.reserved else ()
                self.ledger.admit(name, size, claims)
                self.promised[name] = size
            case "reserve" if name not in self.reserved:
                self.ledger.reserve(name, size)
                self.reserved[name] = size
            case "unreserve":
                self.ledger.release_reservation(name)
                self.reserved.pop(name, None)
            case "take" if name in self.promised:
                self.held[name] = min(self.promised[name], self.held.get(name, 0) + size)
            case "end" if name in self.promised:
                self.held.pop(name, None)
                self.promised.pop(name)
                if self.seen:  # by its uuid, because a later domain may have the name
                    self.seen.pop(name, None)
                self.ledger.release(name)


VERBS = st.sampled_from(["begin", "sample", "admit", "admit", "reserve", "unreserve", "take", "take", "end"])


@given(st.lists(st.tuples(VERBS, st.sampled_from("abcd"), st.integers(1, 600)), max_size=40))
def test_nothing_is_promised_twice_however_samples_and_domains_interleave(
    work: list[tuple[str, str, int]],
) -> None:
    """Memory still to be taken is free at every moment."""
    host = Host(Ledger(0), foreign=100)
    host.sample()
    for verb, name, size in work:
        try:
            host.do(verb, name, size)
        except Exhausted:
            continue
        zones = sum(size - host.held.get(zone, 0) for zone, size in host.promised.items())
        unused = sum(size for claim, size in host.reserved.items() if not host.ledger.holder(claim))
        assert zones + unused <= host.free


async def test_watchers_are_told_the_newest_and_there_are_not_too_many() -> None:
    ledger = Ledger(1000)
    watch = ledger.watch()
    assert await anext(watch) == Capacity(total=1000, free=1000)
    ledger.admit("a", 100)
    ledger.reserve("claim", 200)
    assert await anext(watch) == Capacity(
        total=1000, promised=300, free=700, reservations=200, reservation_count=1
    )
    waiting = asyncio.ensure_future(anext(watch, None))
    ledger.sample(MemorySample(2000))
    ledger.release("nobody")
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done, "what has not changed is not told"
    ledger.close()
    assert await waiting is None
    others = [ledger.watch() for _ in range(ledgers.WATCHER_LIMIT + 1)]
    ledger._closed = False
    for other in others[:-1]:
        await anext(other)
    with pytest.raises(Exhausted, match="64 watchers"):
        await anext(others[-1])
    await others[0].aclose()
    await anext(ledger.watch())
