"""The benchmark among hostile zones ends and leaves nothing; figures are not checked."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.session import leaving
from tests.support.waiting import block_until

ROOT = Path(__file__).resolve().parents[3]
COMMAND = (sys.executable, "-m", "tests.bench.neighbours", "--neighbours", "2", "--only", "statistics")
pytestmark = [pytest.mark.root, pytest.mark.timeout(400)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Folder for the benchmark's files; sockets need a short path."""
    made = Path(tempfile.mkdtemp(prefix="xb-", dir="/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def test_a_small_run_measures_and_leaves_nothing(folder: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--seconds", "1"],
        cwd=ROOT, env=os.environ | {"TMPDIR": str(folder)}, capture_output=True, text=True, timeout=360,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for said in ("start of a pod", "exec", "statistics", "p50", "p99", "protectd"):
        assert said in done.stdout
    assert not leaving.started_for(folder)
    assert not list(folder.iterdir())


def test_a_row_of_attackers_ends_in_time_and_leaves_nothing(folder: Path) -> None:
    """Also if the neighbours delay the daemons; the pods are gone, and all mounts."""
    command = (sys.executable, "-m", "tests.bench.neighbours", "--only", "client: SPDY SETTINGS")
    done = subprocess.run(
        [*command, "--attack-seconds", "1", "--patience", "5", "--recovery", "1"],
        cwd=ROOT, env=os.environ | {"TMPDIR": str(folder)}, capture_output=True, text=True, timeout=360,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for said in ("RunPodSandbox", "pull", "p99", "attackers", "workers, most", "'frames': "):
        assert said in done.stdout
    assert "no figures" not in done.stdout
    assert not leaving.started_for(folder)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_benchmark_ended_by_a_signal_leaves_no_process(folder: Path, number: signal.Signals) -> None:
    command = [*COMMAND, "--seconds", "3600"]
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | {"TMPDIR": str(folder)}) as bench:
        try:
            block_until(lambda: _named(folder, "hostile_zone"), 180)
            assert _named(folder, "protect") and _named(folder, "cri") and _named(folder, "fakedom")
        finally:
            bench.send_signal(number)
        bench.wait(120)
    block_until(lambda: not leaving.started_for(folder), 120)


def _named(folder: Path, program: str) -> bool:
    """Whether a process of this name was started for the folder."""
    for pid in leaving.started_for(folder):
        try:
            if program in Path(f"/proc/{pid}/cmdline").read_text():
                return True
        except (FileNotFoundError, ProcessLookupError):
            continue
    return False
