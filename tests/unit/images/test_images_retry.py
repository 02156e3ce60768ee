"""How often, and after how long, one host is asked again."""

from __future__ import annotations

import time
from email.utils import formatdate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri.images.cancel import Cancel
from cri.images.errors import Cancelled, Interrupted, Stalled
from cri.images.registry.retry import PROGRESS, Patience, retry_after, with_patience
from cri.images.settings import ImageSettings

BROKEN = Interrupted("pull", "x", "the connection broke off")
SETTINGS = ImageSettings(Path("/nowhere"), tries_per_host=3, retry_seconds=0.001, retry_most_seconds=0.002)


def test_so_many_tries_and_no_more() -> None:
    tried: list[int] = []

    def work() -> None:
        tried.append(1)
        raise BROKEN

    with pytest.raises(Interrupted):
        with_patience(work, SETTINGS, Cancel())
    assert len(tried) == 3


def test_progress_gives_new_tries() -> None:
    patience = Patience(SETTINGS, Cancel())
    for _ in range(10):
        patience.moved(PROGRESS)
        patience.again(BROKEN)
    patience.moved(PROGRESS - 1)
    patience.again(BROKEN)
    with pytest.raises(Interrupted):
        patience.again(BROKEN)


def test_a_stall_costs_its_time_once_only() -> None:
    stalled = Stalled("pull", "x", "it stopped answering")
    with pytest.raises(Stalled):
        Patience(SETTINGS, Cancel()).again(stalled)
    patience = Patience(SETTINGS, Cancel())
    patience.moved(PROGRESS)
    patience.again(stalled)
    with pytest.raises(Stalled):
        patience.again(stalled)


def test_pauses_grow_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ImageSettings(Path("/nowhere"), tries_per_host=100, retry_seconds=1, retry_most_seconds=8)
    pauses: list[float] = []
    monkeypatch.setattr("threading.Event.wait", lambda self, timeout: pauses.append(timeout))
    patience = Patience(settings, Cancel())
    for _ in range(20):
        patience.again(BROKEN)
    for number, pause in enumerate(pauses):
        longest = min(8, 2**number)
        assert longest / 2 <= pause <= longest
    assert len(set(pauses)) == 20
    pauses.clear()
    Patience(settings, Cancel()).again(Interrupted("pull", "x", "busy", after=5))
    assert 5.5 <= pauses[0] <= 6
    with pytest.raises(Interrupted, match="asked again in 9 s"):
        Patience(settings, Cancel()).again(Interrupted("pull", "x", "busy", after=9))


def test_whoever_is_called_off_does_not_pause() -> None:
    cancel = Cancel()
    cancel.set()
    with pytest.raises(Cancelled):
        Patience(SETTINGS, cancel).again(BROKEN)


def test_retry_after() -> None:
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
def test_retry_after_anything(untrusted: str) -> None:
    found = retry_after(untrusted, 0)
    assert found is None or found >= 0
