"""Mount namespaces of zones on hosts whose root directory is a shared mount, as under systemd."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.root

_MAKE = """
import os, sys
from pathlib import Path
from protect.host import mounts, mountspace
from protect.volumes.area import Area
area = Area(Path(sys.argv[1]) / "zone")
area.make()
area.attach("w1", "v", mounts.clone(Path("/etc"), recursive=False), directory=True)
print(mountspace.inside(area.namespace, lambda: os.listdir("/w1/v")) == os.listdir("/etc"))
area.remove()
"""


@pytest.mark.parametrize("propagation", ["shared", "private", "slave"])
def test_a_zone_s_volumes_on_a_host_with_systemd(propagation: str, tmp_path: Path) -> None:
    python = [sys.executable, "-c", _MAKE, str(tmp_path)]
    command = ["unshare", "--mount", "--propagation", propagation, *python]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["True"]), done.stderr
