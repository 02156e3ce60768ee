"""The launcher is called with descriptors of any number open; none keeps its caller waiting or gets in."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.agent.zone import BUILD

pytestmark = pytest.mark.root

# Numbers around the launcher's own descriptors.
NUMBERS = (3, 4, 5, 99, 100, 101, 102, 103)


@pytest.mark.parametrize("number", NUMBERS)
def test_inherited_descriptor_does_not_reach_the_zone(root: Path, tmp_path: Path, number: int) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    command = [str(BUILD / "fakedom"), "--root", str(root), "--dir", str(directory)]
    script = f'exec {number}</dev/null; shift; exec "$@"'
    # bash: dash knows only descriptors of a single digit
    done = subprocess.run(
        ["bash", "-c", script, "bash", "-", *command], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    pid = int((directory / "pid").read_text().split()[0])
    try:
        # before the agent, a stopped process has: its own three, the channel, the order to continue
        opened = {int(name): os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
        assert len(opened) <= 6
        assert not [number for number, target in opened.items() if number > 0 and target == "/dev/null"]
    finally:
        os.kill(pid, signal.SIGKILL)
