"""Kill tests that a run leaves out (tests/support/session/checkpoints.py): shown by runs on a small file."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.session.checkpoints import DANGEROUS, one_of_each_verb

ROOT = Path(__file__).resolve().parents[3]

CONFTEST = """
    from tests.support.session.checkpoints import add_option, configure

    def pytest_addoption(parser):
        add_option(parser)

    def pytest_configure(config):
        configure(config)
"""

KILLS = """
    from tests.support.session.checkpoints import killed_at

    ZONE = [f"zone-create.{step}" for step in ("recorded", "domain-created", "running")]

    @killed_at([*ZONE, "a.b:1", "a.b:2"])
    def test_killed(step):
        with open("ran", "a") as file:
            file.write(step + "\\n")

    def test_other():
        with open("ran", "a") as file:
            file.write("other\\n")
"""


def run(folder: Path, *options: str) -> tuple[list[str], str]:
    """Executed tests, sorted, and the output."""
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    (folder / "conftest.py").write_text(textwrap.dedent(CONFTEST))
    (folder / "test_it.py").write_text(textwrap.dedent(KILLS))
    clean = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTEST_ADDOPTS")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options], cwd=folder,
        env={**clean, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return sorted((folder / "ran").read_text().splitlines()), done.stdout


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_checkpoint_of_each_verb_runs_and_the_rest_is_counted(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    ran, said = run(tmp_path, "--checkpoints=one", *workers)
    assert ran == ["a.b:2", "other", "zone-create.domain-created"]
    assert "CHECKPOINTS: one of each verb ran; 3 further kill tests did not (make test-rest)\n" in said


def test_the_rest_are_the_others(tmp_path: Path) -> None:
    ran, said = run(tmp_path, "--checkpoints=rest")
    assert ran == ["a.b:1", "zone-create.recorded", "zone-create.running"]
    assert "CHECKPOINTS: only the kill tests ran that make test leaves out\n" in said


def test_by_default_all_run(tmp_path: Path) -> None:
    ran, said = run(tmp_path)
    assert len(ran) == 6 and "CHECKPOINTS" not in said


def test_the_step_in_the_middle_stands_for_the_others() -> None:
    assert one_of_each_verb(["b.3", "b.1", "b.2", "a.1"]) == ["a.1", "b.1"]


def test_each_verb_has_at_most_a_single_dangerous_step() -> None:
    listed: set[str] = set()
    for daemon in ("cri", "protect"):
        command = [sys.executable, "-m", daemon, "--list-checkpoints"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        listed |= set(done.stdout.split())
    assert DANGEROUS <= listed
    verbs = [step.partition(".")[0] for step in DANGEROUS]
    assert len(set(verbs)) == len(verbs)
