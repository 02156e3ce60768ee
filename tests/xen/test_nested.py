"""Boots Xen in QEMU, runs every suite of tests/xen/suites.py in a dom0, and reports each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cluster.programs import VARIABLE
from tests.xen import machine, prepare
from tests.xen.parts import NotInstalled, find_parts
from tests.xen.suites import SUITES, Suite

_BOOT = 120.0
_REST = 300.0
"""Builds the machines' parts, boots the machines, and switches them off."""

# The first test of a suite waits for all suites, and they have limits of their own.
_LIMIT = _REST + _BOOT + sum(suite.deadline for suite in SUITES)
pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(_LIMIT)]

_TAIL = 6000
_FORWARDED = ("CI", VARIABLE)
"""Variables of the environment for dom0."""
_MACHINES = 2
"""At the same time: emulation and its waiting processes keep about a processor busy each."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Results of a machine."""

    outcome: machine.Outcome
    results: Path


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Runs]:
    """Results of each suite of this run of pytest, by name."""
    try:
        find_parts()
        machine.small_kernel()
    except NotInstalled as error:
        pytest.skip(str(error))
    if os.geteuid() != 0:
        pytest.skip("needs root: dom0 reads the host's files")
    folder = tmp_path_factory.mktemp("nested")
    prepare.guest_parts()
    shares = shared_out(_wanted(request.session.items))
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():  # a line for each suite at its end
        with ThreadPoolExecutor(_MACHINES) as pool:
            folders = [folder / f"machine{number}" for number in range(len(shares))]
            every = list(pool.map(_run, shares, folders))
    return {suite.name: runs for suites, runs in zip(shares, every, strict=True) for suite in suites}


def _run(suites: Sequence[Suite], folder: Path) -> Runs:
    (folder / "job").mkdir(parents=True)
    prepare.peer_guest(folder / "job")
    outcome = machine.run(
        [sys.executable, "-m", "tests.xen.run_suites", *(suite.name for suite in suites)],
        folder=folder,
        deadline=_BOOT + sum(suite.deadline for suite in suites),
        environment={name: value for name, value in os.environ.items() if name in _FORWARDED},
        size=suites[0].size,
        hypervisor=suites[0].hypervisor,
        hardware=suites[0].hardware,
        store=suites[0].store,
    )
    return Runs(outcome, folder / "job" / "results")


def _wanted(items: Sequence[pytest.Item]) -> list[Suite]:
    """The suites of this run, without deselected suites."""
    names = {item.name for item in items}
    return [suite for suite in SUITES if f"test_suite_passes_in_dom0[{suite.name}]" in names]


def shared_out(suites: Sequence[Suite]) -> list[list[Suite]]:
    """Assign suites to machines, the longest first, each to the machine with the least work.

    Suites with another Xen, other hardware or another Xenstore have machines of their own.
    """
    shares: list[list[Suite]] = [[] for _ in range(_MACHINES)]
    own = [[suite] for suite in suites if suite.wants_own_machine]
    for suite in sorted(
        (suite for suite in suites if not suite.wants_own_machine),
        key=lambda suite: suite.seconds,
        reverse=True,
    ):
        min(shares, key=lambda share: sum(suite.seconds for suite in share)).append(suite)
    return [share for share in [*shares, *own] if share]


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_suite_passes_in_dom0(suite: Suite, runs: dict[str, Runs]) -> None:
    results, outcome = runs[suite.name].results, runs[suite.name].outcome
    status = results / f"{suite.name}.status"
    if status.exists() and status.read_text() == "0":
        return
    log = results / f"{suite.name}.log"
    said = log.read_text(errors="replace")[-_TAIL:] if log.exists() else "(it never began)"
    console = outcome.console.read_text(errors="replace")[-_TAIL:]
    how = status.read_text() if status.exists() else outcome.cause
    pytest.fail(f"{suite.name}: {how}\n{said}\n--- dom0's console ---\n{console}", pytrace=False)


def test_the_command_s_exit_code_and_output_come_back(tmp_path: Path) -> None:
    """The harness itself, with a failing command."""
    try:
        find_parts()
    except NotInstalled as error:
        pytest.skip(str(error))
    if os.geteuid() != 0:
        pytest.skip("needs root")
    script = "cat /sys/hypervisor/type; pwd; touch /changed-in-dom0-only; exit 7"
    options = ["--folder", str(tmp_path), "--deadline", "900"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.xen.run", *options, "--", "sh", "-c", script],
        cwd=machine.CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert done.stdout.splitlines() == ["xen", str(machine.CHECKOUT)]
    assert "the command's exit code is 7" in done.stderr
    assert not Path("/changed-in-dom0-only").exists()


def test_a_hanging_machine_is_switched_off(tmp_path: Path) -> None:
    try:
        outcome = machine.run(["true"], folder=tmp_path, deadline=1.0)
    except NotInstalled as error:
        pytest.skip(str(error))
    assert outcome.status is None
    assert "did not end within 1 s" in outcome.cause
