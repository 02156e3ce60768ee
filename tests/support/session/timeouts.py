"""A plugin of pytest: a test that no time limit can end is ended from outside.

pytest-timeout's limit (``timeout`` in pyproject.toml, or a test's mark) raises in the main thread: the test
fails, and the fixtures end the daemons. A call into C that never returns does not notice. Some time later the
watchdog kills the whole process, with the daemons. xdist then reports the test as failed and goes on with the
remaining tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from pytest_timeout import Settings, is_debugging

from tests.support.session import watchdog

_GRACE = 2.0
_SHARE = 0.2
"""Extra seconds after the limit, for the fixtures to end the test's daemons."""


class Watch:
    """Our side of the watchdog."""

    def __init__(self) -> None:
        mark = uuid.uuid4().hex
        environment = {name: value for name, value in os.environ.items() if name != watchdog.VARIABLE}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(watchdog.__file__)), mark],
            stdin=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # the terminal's interrupt is for pytest alone
        )
        os.environ[watchdog.VARIABLE] = mark

    def say(self, text: str) -> None:
        assert self._process.stdin is not None
        os.write(self._process.stdin.fileno(), f"{text}\n".encode())

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Settings) -> None:
        if not is_debugging():
            self.say(str(_GRACE + settings.timeout * (1 + _SHARE)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> None:
        self.say("0")

    def pytest_enter_pdb(self) -> None:
        self.say("0")

    def pytest_unconfigure(self) -> None:
        self.say(watchdog.BYE)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def pytest_configure(config: pytest.Config) -> None:
    """Only where tests run: xdist's controller has workers for the tests."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Watch(), "xenpod-watchdog")
