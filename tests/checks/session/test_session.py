"""Plugins of every run of pytest (tests/support/session): shown by runs of pytest on small test files."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.session import skips, watchdog

ROOT = Path(__file__).resolve().parents[3]
BOTH = "-p tests.support.session.skips -p tests.support.session.timeouts"


def run(
    folder: Path, content: str, options: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """A run of pytest on one file, with the plugins."""
    (folder / "pytest.ini").write_text(f"[pytest]\naddopts = {BOTH}\nasyncio_mode = auto\n")
    (folder / "test_it.py").write_text(textwrap.dedent(content))
    clean = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTEST_ADDOPTS")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", *options.split()],
        cwd=folder,
        env={**clean, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


SKIPS = """
    import pytest

    def test_runs():
        pass

    @pytest.mark.skip(reason="needs the moon")
    def test_marked():
        pass

    @pytest.fixture
    def moon():
        pytest.skip("needs the moon, too")

    def test_in_a_fixture(moon):
        pass

    @pytest.mark.skip(reason="crictl is not on PATH")
    def test_of_crictl():
        pass

    @pytest.mark.xfail(strict=True)
    def test_expected():
        assert False
"""


def test_in_ci_an_unlisted_skip_is_a_failure(tmp_path: Path) -> None:
    done = run(tmp_path, SKIPS, CI="true")
    assert done.returncode == 1
    assert (
        "the reason: needs the moon\n" in done.stdout and "the reason: needs the moon, too\n" in done.stdout
    )
    assert "1 passed, 1 skipped, 1 xfailed, 2 errors" in done.stdout


def test_outside_ci_a_skip_is_a_skip(tmp_path: Path) -> None:
    done = run(tmp_path, SKIPS)
    assert done.returncode == 0
    assert "1 passed, 3 skipped, 1 xfailed" in done.stdout


@pytest.mark.parametrize(("ci", "status"), [("true", 2), ("", 5)])
def test_the_status_of_a_skipped_file_depends_on_ci(tmp_path: Path, ci: str, status: int) -> None:
    content = "import pytest\npytest.skip('no moon', allow_module_level=True)\n"
    assert run(tmp_path, content, CI=ci).returncode == status


def test_the_summary_names_missing_parts(tmp_path: Path) -> None:
    for environment in ({}, {"CI": "true"}):
        said = run(tmp_path, SKIPS, **environment).stdout
        assert "MISSING: crictl is not on PATH, 1 tests of it did not run" in said
    assert "MISSING" not in run(tmp_path, "def test_it():\n    pass\n").stdout


def test_reasons_are_listed_whole() -> None:
    assert skips.allowed("crictl is not on PATH")
    assert not skips.allowed("crictl is not on PATH, nor is crun")


def test_each_listed_reason_belongs_to_a_test() -> None:
    """The list stays short: no reason without a test."""
    given = "".join(
        path.read_text() for path in (ROOT / "tests").rglob("*.py") if path.parent.name != "session"
    )
    assert [one for one in skips.ALLOWED if one.replace("\\", "") not in given] == []


HANGS = """
    import asyncio, pytest, subprocess

    @pytest.fixture
    async def daemon():
        process = await asyncio.create_subprocess_exec("sleep", "1000")
        yield
        process.kill()
        await process.wait()
        print("the daemon was ended")

    @pytest.mark.timeout(1)
    async def test_hangs(daemon):
        await asyncio.Event().wait()

    @pytest.mark.timeout(1)
    async def test_hangs_in_a_thread(daemon):
        await asyncio.to_thread(__import__("time").sleep, 1.5)

    def test_goes_on():
        pass
"""


def test_a_hanging_test_fails_and_its_fixtures_clean_up(tmp_path: Path) -> None:
    done = run(tmp_path, HANGS)
    assert "2 failed, 1 passed" in done.stdout, done.stdout
    assert done.stdout.count("the daemon was ended") == 2
    assert done.stdout.count("Timeout (>1.0s) from pytest-timeout") >= 2


STUCK = """
    import ctypes, os, pathlib, pytest, signal, subprocess

    @pytest.mark.timeout(1)
    def test_is_stuck():
        started = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        pathlib.Path("daemon").write_text(str(started.pid))
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        ctypes.PyDLL(None).sleep(1000)

    def test_other():
        pass
"""


def test_an_endless_call_into_c_is_ended_with_its_daemons(tmp_path: Path) -> None:
    """The test holds the interpreter's lock and hears no signal."""
    done = run(tmp_path, STUCK)
    assert done.returncode < 0
    assert "in test_is_stuck" in done.stderr  # where the test hung
    ended = tmp_path / "daemon"
    with contextlib.suppress(FileNotFoundError):
        assert Path(f"/proc/{ended.read_text()}/stat").read_text().split()[2] == "Z"


def test_workers_of_xdist_have_a_watchdog_each(tmp_path: Path) -> None:
    done = run(tmp_path, STUCK, "-n 1")
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "crashed while running 'test_it.py::test_is_stuck'" in done.stdout


def test_a_killed_run_leaves_no_process(tmp_path: Path) -> None:
    content = STUCK.replace("ctypes.PyDLL(None).sleep(1000)", "os.kill(os.getpid(), signal.SIGKILL)")
    watch = f"{watchdog.VARIABLE}="
    done = run(tmp_path, content)
    assert done.returncode == -9
    daemon = int((tmp_path / "daemon").read_text())
    # The watchdog has the pipe that we read. The pipe has ended: the watchdog has noticed the end of pytest.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        assert watch not in Path(f"/proc/{daemon}/environ").read_text()


@pytest.mark.parametrize(("ci", "repeats"), [({"CI": "true"}, "True"), ({}, "False")])
def test_in_ci_hypothesis_repeats_itself(ci: dict[str, str], repeats: str) -> None:
    code = "import tests.conftest, hypothesis; print(hypothesis.settings().derandomize)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **ci},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == repeats


def test_every_test_here_has_a_limit(pytestconfig: pytest.Config) -> None:
    assert float(pytestconfig.getini("timeout")) > 0
    assert pytestconfig.getini("timeout_method") == "signal"
