"""A small benchmark prints all tables and leaves nothing; figures are not checked."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import passing
from tests.bench.measure import STEPS
from tests.bench.parts import ANEW, ENCODED, KEPT, PAST, THROUGH, figure
from tests.bench.plugins import ADD, DEL
from tests.bench.pulling import PULLS
from tests.bench.reading import READS
from tests.bench.report import percentile
from tests.bench.streams import WAYS

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.root
@pytest.mark.timeout(660)
@pytest.mark.skipif(shutil.which("containerd") is None, reason="containerd is not installed")
def test_a_small_run_measures_both_sides(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [
        "--pods",
        "1",
        "--crowd",
        "2",
        "--pods-listed",
        "2",
        "--passed",
        "1",
        "--others",
        "4",
        "--neighbours",
        "0",
        "--stream-mib",
        "1",
        "--image-mib",
        "8",
        "--profile",
        "--json",
        str(figures),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", *command],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for said in (
        *STEPS,
        ADD,
        DEL,
        "how the cost grows",
        *READS,
        *WAYS,
        *PULLS,
        "on the disk, two images",
        "2 pods at once",
        "daemons, idle",
        "each pod",
        "Zones.CreateZone",
        "ratio",
    ):
        assert said in done.stdout
    samples = json.loads(figures.read_text())
    assert set(samples) == {"xenpod", "containerd"}
    both = {*STEPS, ADD, DEL, *READS, *WAYS, *PULLS}
    parts = {THROUGH, PAST, *(figure(rpc, way) for rpc in ENCODED for way in (ANEW, KEPT))}
    passed = {
        passing.figure(step, way) for step in passing.STEPS for way in (passing.THROUGH, passing.DIRECT)
    }
    assert set(samples["containerd"]) == both | passed
    assert set(samples["xenpod"]) == both | parts
    for side in samples.values():
        assert all(seconds > 0 for step in side.values() for seconds in step)


def test_percentiles_of_known_samples_are_exact() -> None:
    assert percentile([7.0], 95) == 7.0
    assert percentile([1.0, 2.0, 3.0], 50) == 2.0
    assert percentile(list(map(float, range(101))), 95) == 95.0
