"""The daemons' threads share the interpreter."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

import cri.__main__
import protect.__main__
from daemonkit import daemon

DEFAULT = 0.005
"""CPython's own, in seconds."""


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(DEFAULT)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize(
    ("main", "most"),
    [(cri.__main__.main, DEFAULT / 10), (protect.__main__.main, DEFAULT)],
    ids=["cri", "protect"],
)
def test_switch_interval_of_a_daemon_is_set(
    main: Callable[[], int], most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads of xenpod-cri merge large trees; its loop is not to wait long for each step."""
    intervals: list[float] = []

    def run(*arguments: object) -> int:
        intervals.append(sys.getswitchinterval())
        return 0

    monkeypatch.setattr(daemon, "main", run)
    assert main() == 0
    assert intervals == [pytest.approx(most)]
