"""In dom0: runs the named suites in order; writes each suite's outcome to a file.

``<results>/<suite>.status`` is pytest's exit code (124: too long), ``<suite>.log`` its output,
``<suite>.xml`` its JUnit report.  A failed suite leaves the ends of its daemons' logs, too
(``<suite>-daemons/``).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.xen.machine import CHECKOUT, SHARE
from tests.xen.suites import SUITES, Suite

RESULTS = SHARE / "results"
TOO_LATE = 124
_LAST_WORDS = 120.0
_KEPT_BYTES = 256 << 10
"""Of each daemon's log."""


def main() -> int:
    """0 when every suite passed."""
    names = sys.argv[1:]
    return max([_run(suite, RESULTS) for suite in SUITES if suite.name in names], default=TOO_LATE)


def _run(suite: Suite, results: Path) -> int:
    begun = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5"]
    command += [
        f"--junitxml={results / suite.name}.xml",
        f"--basetemp=/var/tmp/{suite.name}",
        f"--timeout={suite.deadline}",  # in emulation a single test may take as long as most suites elsewhere
        *suite.arguments,
    ]
    with (results / f"{suite.name}.log").open("wb") as log:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **suite.environment}
        pytest = subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=log, stderr=log)
        status = _wait(pytest, suite.deadline)
    if status != 0:
        _keep_logs(Path("/var/tmp", suite.name), results / f"{suite.name}-daemons")
        _end_domains()
    (results / f"{suite.name}.status").write_text(str(status))
    sys.stdout.write(f"{suite.name}: {status} after {time.monotonic() - begun:.0f} s\n")
    sys.stdout.flush()
    return status


def _keep_logs(folder: Path, kept: Path) -> None:
    kept.mkdir()
    for log in sorted(folder.rglob("*.log")):
        if log.name in ("cri.log", "protectd.log"):
            name = str(log.relative_to(folder)).replace("/", "_")
            (kept / name).write_bytes(log.read_bytes()[-_KEPT_BYTES:])


def _end_domains() -> None:
    """Destroy leftover domains of a failed suite: they would take memory and CPU from the next suite."""
    try:
        for line in _xl("list").splitlines()[1:]:
            domain = line.split()[1]
            if domain != "0":
                _xl("destroy", domain)
    except subprocess.SubprocessError as error:
        sys.stdout.write(f"domains are left: {error}\n")


def _xl(*words: str) -> str:
    return subprocess.run(["xl", *words], capture_output=True, text=True, check=True, timeout=60).stdout


def _wait(pytest: subprocess.Popen[bytes], deadline: float) -> int:
    """The exit code; after the deadline pytest is interrupted, and still reports its failures."""
    try:
        return pytest.wait(deadline)
    except subprocess.TimeoutExpired:
        pytest.send_signal(signal.SIGINT)
    try:
        pytest.wait(_LAST_WORDS)
    except subprocess.TimeoutExpired:
        pytest.kill()
        pytest.wait()
    return TOO_LATE


if __name__ == "__main__":
    sys.exit(main())
