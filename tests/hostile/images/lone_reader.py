"""A program that reads a layer with a bound on its CPU time, and reports the result.

Its argument and its output are JSON objects: see Task and Reading.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from daemonkit.faults import Fault
from images.bounds.limits import ImageLimits
from images.layer import compression
from images.layer.layers import CHUNK_BYTES, read_layer
from images.rootfs.plan import Planner

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Task:
    """A layer in a file. cpu: seconds until the program is killed; plan: also plan its filesystem."""

    path: str
    diff_id: str
    cpu: int = 20
    plan: bool = False
    limits: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Reading:
    """fault: class of the raised error, "": none; took: inflated bytes; peak: bytes of memory."""

    fault: str
    text: str
    entries: int
    took: int
    peak: int


def read_alone(task: Task) -> Reading:
    """Run the program; fails if it exceeds its time."""
    command = [sys.executable, "-m", "tests.hostile.images.lone_reader", json.dumps(asdict(task))]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return Reading(**json.loads(done.stdout))


def main() -> None:
    """Carry out the task."""
    task = Task(**json.loads(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_CPU, (task.cpu, task.cpu))
    took = [0]
    plain = compression.plain

    def counted(*given: object) -> Iterator[bytes]:
        for chunk in plain(*given):  # type: ignore[arg-type]
            took[0] += len(chunk)
            yield chunk

    compression.plain = counted  # type: ignore[assignment]
    before = _peak()
    fault, text, entries = "", "", 0
    limits = ImageLimits(**task.limits)
    try:
        with open(task.path, "rb", buffering=0) as file:
            size = Path(task.path).stat().st_size
            index = read_layer(iter(lambda: file.read(CHUNK_BYTES), b""), size, task.diff_id, limits)
        entries = len(index.entries)
        if task.plan:
            planner = Planner("image", limits)
            planner.apply(index.entries)
            planner.plan()
    except Fault as raised:
        fault, text = type(raised).__name__, str(raised)
    sys.stdout.write(json.dumps(asdict(Reading(fault, text, entries, took[0], _peak() - before))))


def _peak() -> int:
    """Peak memory of this program; getrusage(2) may count its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


if __name__ == "__main__":
    main()
