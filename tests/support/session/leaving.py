"""Ends the processes of a benchmark, after any kind of end of the benchmark.

The benchmark's daemons have sessions of their own, and zones outlive the daemons. ``python -m
tests.support.session.leaving FOLDER`` waits until its input ends, with the process at the far end. Then the
program kills every process with a path in the folder, and unmounts every mount in the folder.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from protect.host import mounts
from tests.bench import memory

T = TypeVar("T")
ROOT = Path(__file__).parents[3]
_LONGEST = 60.0
_PAUSE = 0.05


@contextmanager
def nothing_left(folder: Path) -> Iterator[None]:
    """After the block, or this process: no process of the folder runs, and nothing is mounted below."""
    command = (sys.executable, "-m", "tests.support.session.leaving", str(folder))
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT, start_new_session=True)
    assert guard.stdin is not None
    try:
        yield
    finally:
        guard.stdin.close()
        guard.wait()


def run(work: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run``; SIGTERM and SIGHUP cancel the work too, and the work is undone."""

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await work

    return asyncio.run(main())


def started_for(folder: Path) -> set[int]:
    """Processes with a path in the folder among their arguments, and their children."""
    found = memory.with_argument(f"{folder}/", "")
    return found | memory.descendants(found)


def clear(folder: Path) -> bool:
    """Kill the folder's processes, and unmount the mounts below; False: the end takes too long."""
    deadline = time.monotonic() + _LONGEST
    while (left := started_for(folder)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE)
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in reversed([point for point in points if point.startswith(f"{folder}/")]):
        mounts.unmount(Path(point))
    return not left


def main() -> int:
    folder = Path(sys.argv[1])
    sys.stdin.buffer.read()
    return 0 if clear(folder) else 1


if __name__ == "__main__":
    sys.exit(main())
