"""A process beside pytest that ends a pytest whose test hangs where no signal handler can run.

``python watchdog.py MARK`` is a child of pytest. Each line on its standard input is the number of seconds
left from now on, ``0`` for no limit, or ``bye``: pytest ends in order. When the time is up pytest gets
SIGABRT (the fault handler writes every thread's traceback) and SIGKILL. Then, and when pytest ends without a
``bye``, every process with MARK in its environment is killed: the daemons of the test, and zones, which
outlive their daemons by design.

Only the standard library is used, for a quick start.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "XENPOD_TEST_RUN"
BYE = "bye"
_LAST_WORDS = 10.0
_ROUNDS = 20


def main() -> int:
    """0 when pytest ended in order, 1 when something had to be killed."""
    pytest, mark = os.getppid(), sys.argv[1]
    if _watch(sys.stdin.fileno()):
        return 0
    _end(pytest)
    kill_marked(mark)
    return 1


def _watch(source: int) -> bool:
    """True: pytest says that it ends; False: pytest has ended without a word, or is too late."""
    deadline: float | None = None
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not select.select([source], [], [], left)[0]:
            return False
        said = os.read(source, 65_536).decode().split()
        if not said:
            return False
        if said[-1] == BYE:
            return True
        seconds = float(said[-1])
        deadline = time.monotonic() + seconds if seconds else None


def _end(pytest: int) -> None:
    """Kill the parent, after a traceback of its hang. After the parent's end, we have another parent."""
    for number in (signal.SIGABRT, signal.SIGKILL):
        until = time.monotonic() + _LAST_WORDS
        if os.getppid() == pytest:
            os.kill(pytest, number)
        while os.getppid() == pytest and time.monotonic() < until:
            time.sleep(0.05)


def kill_marked(mark: str) -> None:
    """Kill every process with the mark, and processes started during the kill."""
    for _ in range(_ROUNDS):
        found = list(_marked(f"{VARIABLE}={mark}".encode()))
        if not found:
            return
        for process in found:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)


def _marked(entry: bytes) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:  # the process has ended, or belongs to another user
            continue
        if entry in environment.split(b"\0"):
            yield int(folder.name)


if __name__ == "__main__":
    sys.exit(main())
