"""Steps of protectd that can be armed, including steps of the configured toolstack."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from daemonkit import checkpoints
from protect import __main__ as protectd

async def serve(config, stop):
    print(sorted(checkpoints._armed))

protectd.serve_zones = serve
sys.exit(protectd.main(["--config", sys.argv[1]]))
"""


@pytest.mark.parametrize(
    ("toolstack", "step", "status"),
    [("libxl", "libxl-create.made", 0), ("fake", "fake-create.wired", 0), ("fake", "libxl-create.made", 2)],
)
def test_steps_of_the_configured_toolstack_can_be_armed(
    tmp_path: Path, toolstack: str, step: str, status: int
) -> None:
    """In a new process: other tests may have imported the steps in this process."""
    config = tmp_path / "protectd.toml"
    config.write_text(f'toolstack = "{toolstack}"\n[faults]\nkill_at = "{step}"\n')
    command = [sys.executable, "-c", SCRIPT, str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert done.stdout == ("" if status else f"['{step}']\n")
