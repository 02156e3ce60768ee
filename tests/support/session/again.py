"""Runs pytest, and what failed once more by itself: ``python -m tests.support.session.again ARGUMENTS...``.

The tests start and kill thousands of daemons, on machines that stand still now and then.  A test that fails
beside others and passes alone does not stop a change, but the last lines name it as unstable: it is to be
mended.  One that fails twice has failed.  When more than a few fail, none is run again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MOST = 8
"""Tests that are run again; when more have failed it is not the machine."""
UNSTABLE = "UNSTABLE: "
_FAILED = 1
"""pytest's exit code for tests that failed; others are not about tests."""


def main(arguments: Sequence[str]) -> int:
    """pytest's exit code: of the second run where there is one."""
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
