"""Children of a daemon that cannot be made low-priority processes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from daemonkit.host import children


def test_session_of_an_ended_child_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    ended = subprocess.Popen(["true"], start_new_session=True)
    ended.wait()
    children.lower_session(ended.pid)
    assert not caplog.records


def test_refused_change_of_a_session_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel refuses a second change in 100 ms to daemons without CAP_SYS_ADMIN."""

    def refuse(place: Path, text: str) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable", str(place))

    monkeypatch.setattr(children, "_write_file", refuse)
    children.lower_session(1)
    assert "process 1 keeps what is the daemon's" in caplog.text and "/proc/1/autogroup" in caplog.text
