"""Runs pytest, then the failed tests alone: ``python -m tests.support.session.again ARGUMENTS...``.

The tests start and kill thousands of daemons, on machines that stall now and then. A test that fails beside
others and passes alone does not stop a change, but the last lines name the test as unstable, for a repair. A
test that fails twice has failed. If more than a few tests fail, none is run again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MOST = 8
"""Limit of repeated tests; more failures are not due to the machine."""
UNSTABLE = "UNSTABLE: "
_FAILED = 1
"""pytest's exit code for failed tests; other codes are not about tests."""


def main(arguments: Sequence[str]) -> int:
    """pytest's exit code, of the second run if there is a second run."""
    command = [sys.executable, "-m", "pytest", *arguments]
    status = subprocess.call(command)
    failed = _failed(Path(".pytest_cache/v/cache/lastfailed")) if status == _FAILED else []
    if not 0 < len(failed) <= MOST:
        return status
    sys.stdout.write(f"\n{len(failed)} failed; once more, by themselves:\n")
    sys.stdout.flush()
    status = subprocess.call([*command, "-n", "0", "--last-failed", "--last-failed-no-failures=none"])
    if status == 0:
        sys.stdout.write("".join(f"{UNSTABLE}{name} passed only by itself\n" for name in failed))
    return status


def _failed(cache: Path) -> list[str]:
    """Of the run that has ended; in the order of their names."""
    return sorted(json.loads(cache.read_text())) if cache.exists() else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
