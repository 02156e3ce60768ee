"""Hosts with a recent failure are asked last, and a single caller tries them again later."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from daemonkit.faults import Denied, Fault, Missing
from images.image_errors import Busy, Corrupt, Interrupted, Stalled, Unconnected
from images.pull.candidates import Candidates
from images.pull.progress import Progress
from images.registry import health
from images.registry.health import FAILED_SECONDS, HostHealth

DEAD = Unconnected("pull", "x", "Connection refused")
WRONG = Busy("pull", "x", "the registry answers 502")


class Source:
    def __init__(self, name: str, resolves: bool = True) -> None:
        self.name = name
        self.resolves = resolves


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _candidates(host_health: HostHealth, progress: Progress | None = None, registry: str = "r") -> Candidates:
    sources: list[Any] = [Source("a"), Source("b"), Source("r")]
    return Candidates(sources, registry, host_health, progress or Progress("image"))


def _order(candidates: Candidates) -> str:
    return "".join(source.name for source in candidates.in_order(lambda source: True))


def test_a_dead_host_is_asked_last_for_a_minute_then_first_by_a_single_caller() -> None:
    clock = Clock()
    known = HostHealth(clock)
    known.failed("a", "r", DEAD)
    assert known.failure("a", "r") == known.failure("a", "other") == "Connection refused"
    assert known.failure("b", "r") == ""
    clock.now += FAILED_SECONDS
    assert [known.failure("a", "r") for _ in range(3)] == ["", "Connection refused", "Connection refused"]
    known.answered("a", "r")
    assert known.failure("a", "r") == ""


@pytest.mark.parametrize(
    ("fault", "host", "registry"),
    [
        (DEAD, True, True),
        (WRONG, False, True),
        (Stalled("pull", "x", "it stopped answering"), False, True),
        (Interrupted("pull", "x", "the connection broke off"), False, True),
        (Busy("pull", "x", "the registry answers 429", overloaded=True), False, False),
        (Missing("pull", "x", "no such image"), False, False),
        (Denied("pull", "x", "access is denied"), False, False),
        (Corrupt("pull", "x", "another digest"), False, False),
    ],
    ids=lambda value: value.cause if isinstance(value, Fault) else "",
)
def test_fault_counts_against_its_host_or_its_registry_alone(
    fault: Fault, host: bool, registry: bool
) -> None:
    """A mirror's answers about the servers of a registry do not count for another registry."""
    known = HostHealth()
    known.failed("mirror", "r.example", fault)
    assert bool(known.failure("mirror", "other.example")) is host
    assert bool(known.failure("mirror", "r.example")) is registry


def test_names_from_callers_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_MOST_HOSTS", 10)
    known = HostHealth()
    for number in range(1000):
        known.failed(f"host{number}", "r", DEAD)
    assert sum(bool(known.failure(f"host{number}", "r")) for number in range(1000)) == 10
    assert known.failure("host999", "r")


@pytest.mark.parametrize(
    "fault", [DEAD, WRONG, Missing("pull", "x", "no such image"), Corrupt("pull", "x", "another")]
)
def test_failed_host_is_asked_last_for_the_rest_of_the_pull(
    fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    progress = Progress("image")
    candidates = _candidates(HostHealth(), progress)
    first, second, registry = candidates.in_order(lambda source: True)
    for _ in range(3):
        candidates.failed(first, fault)
    assert _order(candidates) == "bra"
    candidates.failed(second, fault)
    assert _order(candidates) == "rab"
    candidates.answered(registry)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(lines) == 2
    assert all("pull image" in line and fault.cause in line for line in lines)
    shown = progress.snapshot().as_json()
    assert shown["host"] == "r"
    assert shown["passedOver"] == {"a": fault.cause, "b": fault.cause}


def test_the_next_pull_knows_and_the_registry_keeps_its_word() -> None:
    known = HostHealth()
    candidates = _candidates(known)
    everyone = candidates.in_order(lambda source: True)
    candidates.failed(everyone[0], DEAD)
    candidates.failed(everyone[2], DEAD)
    progress = Progress("next")
    later = _candidates(known, progress)
    assert _order(later) == "bra"
    assert progress.passed_over == {"a": "it failed a short while ago: Connection refused"}
    assert later.registry(lambda source: True).name == "r"
    assert later.registry(lambda source: source.name != "r").name == "b"


def test_an_answer_makes_a_host_well_again() -> None:
    known = HostHealth()
    candidates = _candidates(known)
    first, *_ = candidates.in_order(lambda source: True)
    candidates.failed(first, WRONG)
    candidates.answered(first)
    assert _order(_candidates(known)) == "abr"


def test_only_host_is_always_asked() -> None:
    known = HostHealth()
    known.failed("r", "r", DEAD)
    progress = Progress("image")
    source: Any = Source("r")
    alone = Candidates([source], "r", known, progress)
    alone.failed(source, DEAD)
    assert _order(alone) == "r"
    assert progress.passed_over == {}
