"""Retries at a host: their number and their delays."""

from __future__ import annotations

import time
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemonkit.faults import Fault
from images.bounds.cancel import CancelToken
from images.concurrency import WorkerThreads
from images.image_errors import Busy, Cancelled, Interrupted, Stalled, Unpackable
from images.image_settings import ImageSettings
from images.pull.candidates import Candidates
from images.pull.fetch import read_first
from images.pull.progress import Progress
from images.registry.conversation.retry import PROGRESS_BYTES, RetryPolicy, retry_after, with_retries
from images.registry.health import HostHealth

BROKEN = Interrupted("pull", "x", "the connection broke off")
SETTINGS = ImageSettings(Path("/nowhere"), tries_per_host=3, retry_seconds=0.001, retry_most_seconds=0.002)


def test_retries_end_at_their_limit() -> None:
    tried: list[int] = []

    def work() -> None:
        tried.append(1)
        raise BROKEN

    with pytest.raises(Interrupted):
        with_retries(work, RetryPolicy(SETTINGS), CancelToken())
    assert len(tried) == 3


@pytest.mark.parametrize(
    ("causes", "told", "asked"),
    [
        (["", "b"], "a", "a"),
        (["one", ""], "b", "ab"),
        (["one"], r"^pull x: one$", "a"),
        (["one", "one"], r"^pull x: one$", "ab"),
        (["one", "two"], r"^pull x: two; tried too: pull x: one$", "ab"),
        (["one", "one", "two"], r"^pull x: two; tried too: pull x: one$", "abc"),
        (["one", "two", "three"], r"^pull x: three; tried too: pull x: one; pull x: two$", "abc"),
        (["one", "final", "three"], r"^merge x: final$", "ab"),
    ],
)
async def test_sources_are_tried_in_turn(causes: list[str], told: str, asked: str) -> None:
    """The first source with a success; or the last source's fault, with the earlier faults."""
    tried: list[str] = []

    def read(source: Any, token: CancelToken) -> str:
        tried.append(source.name)
        cause = causes["abc".index(source.name)]
        if cause:
            raise Unpackable("merge", "x", cause) if cause == "final" else Stalled("pull", "x", cause)
        return str(source.name)

    sources: list[Any] = [SimpleNamespace(name=name) for name in "abc"[: len(causes)]]
    candidates = Candidates(sources, "r.example", HostHealth(), Progress("x"))
    threads = WorkerThreads(1)
    if "" in causes:
        assert await read_first(threads, candidates, read) == told
    else:
        with pytest.raises(Fault, match=told) as raised:
            await read_first(threads, candidates, read)
        assert type(raised.value) is (Unpackable if "final" in causes else Stalled)
    assert "".join(tried) == asked


def test_progress_gives_new_tries() -> None:
    policy = RetryPolicy(SETTINGS)
    for _ in range(10):
        policy.received(PROGRESS_BYTES)
        policy.backoff(BROKEN)
    policy.received(PROGRESS_BYTES - 1)
    policy.backoff(BROKEN)
    with pytest.raises(Interrupted):
        policy.backoff(BROKEN)


def test_a_stall_costs_its_time_once_only() -> None:
    stalled = Stalled("pull", "x", "it stopped answering")
    with pytest.raises(Stalled):
        RetryPolicy(SETTINGS).backoff(stalled)
    policy = RetryPolicy(SETTINGS)
    policy.received(PROGRESS_BYTES)
    policy.backoff(stalled)
    with pytest.raises(Stalled):
        policy.backoff(stalled)


def test_a_busy_host_is_not_asked_again_while_there_is_another() -> None:
    busy = Busy("pull", "x", "the registry answers 503")
    with pytest.raises(Busy):
        RetryPolicy(SETTINGS, last=False).backoff(busy)
    RetryPolicy(SETTINGS, last=True).backoff(busy)
    # A broken connection is worth another try at the same host: the bytes so far are kept.
    RetryPolicy(SETTINGS, last=False).backoff(BROKEN)


def test_pauses_grow_and_differ() -> None:
    settings = ImageSettings(Path("/nowhere"), tries_per_host=100, retry_seconds=1, retry_most_seconds=8)
    policy = RetryPolicy(settings)
    pauses = [policy.backoff(BROKEN) for _ in range(20)]
    for number, pause in enumerate(pauses):
        longest = min(8, 2**number)
        assert longest / 2 <= pause <= longest
    assert len(set(pauses)) == 20
    assert 5.5 <= RetryPolicy(settings).backoff(Interrupted("pull", "x", "busy", after=5)) <= 6
    with pytest.raises(Interrupted, match="asked again in 9 s"):
        RetryPolicy(settings).backoff(Interrupted("pull", "x", "busy", after=9))


def test_a_cancelled_retry_does_not_pause() -> None:
    tried, token = [], CancelToken()

    def work() -> None:
        tried.append(1)
        token.cancel()
        raise BROKEN

    with pytest.raises(Cancelled):
        with_retries(work, RetryPolicy(SETTINGS), token)
    assert len(tried) == 1


def test_retry_after_is_parsed() -> None:
    now = time.time() // 1
    assert retry_after("120", now) == 120
    assert retry_after(" 0 ", now) == 0
    assert retry_after(formatdate(now + 90, usegmt=True), now) == 90
    assert retry_after(formatdate(now - 90, usegmt=True), now) == 0
    for nonsense in ("", "soon", "-1", "1.5", "٣", "Wed, 99 Zzz"):
        assert retry_after(nonsense, now) is None


@given(
    st.one_of(st.text(), st.from_regex(r"\w{3}, \d{1,9} \w{3} \d{1,9} \d\d:\d\d:\d\d ([A-Z]{3}|[+-]\d{1,9})"))
)
def test_any_retry_after_is_parsed_or_ignored(untrusted: str) -> None:
    found = retry_after(untrusted, 0)
    assert found is None or found >= 0
