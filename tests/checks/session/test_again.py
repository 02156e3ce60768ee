"""``make test`` repeats failed tests singly: shown by runs on small test files."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.session.again import MOST

ROOT = Path(__file__).resolve().parents[3]

SECOND_TIME = """
    from pathlib import Path

    def test_passes_the_second_time():
        known = Path(__file__).with_name("known")
        assert known.exists(), known.touch()

    def test_passes():
        with Path(__file__).with_name("ran").open("a") as file:
            file.write("x")
"""


def run(folder: Path, content: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(textwrap.dedent(content))
    clean = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTEST_ADDOPTS")}
    return subprocess.run(
        [
            *(sys.executable, "-m", "tests.support.session.again", "-n", "2", "--dist", "loadfile"),
            *(f"--basetemp={folder / 'temporary'}", "."),
        ],
        cwd=folder,
        env={**clean, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


def test_only_failed_tests_are_repeated_and_a_later_pass_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, SECOND_TIME)
    assert done.returncode == 0, done.stdout
    assert "UNSTABLE: test_it.py::test_passes_the_second_time passed only by itself\n" in done.stdout
    assert (tmp_path / "ran").read_text() == "x"


def test_failing_twice_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, SECOND_TIME + "\n    def test_fails():\n        assert False\n")
    assert done.returncode == 1
    assert "UNSTABLE" not in done.stdout and "1 failed, 1 passed" in done.stdout


@pytest.mark.parametrize(("failing", "runs"), [(MOST, 2), (MOST + 1, 1)])
def test_more_than_a_few_are_not_run_again(tmp_path: Path, failing: int, runs: int) -> None:
    content = f"""
        import pytest

        @pytest.mark.parametrize("number", range({failing}))
        def test_fails(number):
            assert False
    """
    done = run(tmp_path, content)
    assert done.returncode == 1
    assert done.stdout.count(f"== {failing} failed") == runs, done.stdout
