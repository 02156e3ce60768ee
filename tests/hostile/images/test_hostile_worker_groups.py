"""If the host delegates a memory controller, all workers of images together have a limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.bounds.limits import ImageLimits
from images.worker.jobs import OWN_BYTES

MEMORY = Path("/sys/fs/cgroup/memory")
UNIFIED = Path("/sys/fs/cgroup/unified")
BECOME = 'for at in "$0" "$1"; do echo $$ >"$at/cgroup.procs"; done; shift; exec "$@"'
PULLING = """
import logging, tempfile
from images.bounds.limits import ImageLimits
from images.worker.workers import LayerWorkers

logging.basicConfig(level=logging.INFO)
workers = LayerWorkers(ImageLimits())
with tempfile.TemporaryFile() as file:
    # The first job brings their parent.
    workers.start_tool("/bin/true", [], 1, file.fileno(), file.fileno(), file.fileno()).wait()
print(open(f"/proc/{workers._offline._process.pid}/cgroup").read())
workers.close()
"""
GREEDY = """
import os
from daemonkit.host.cgroups import hold_memory

held, go = os.pipe()
greedy = os.fork()
if greedy == 0:
    os.read(held, 1)
    len(bytearray(256 << 20))
    os._exit(0)
assert hold_memory(greedy, "greedy", 32 << 20)
os.write(go, b"g")
print(os.waitstatus_to_exitcode(os.waitpid(greedy, 0)[1]))
"""
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not (MEMORY / "cgroup.procs").exists(), reason="no memory controller of version 1"),
]


@pytest.fixture
def groups() -> Iterator[tuple[Path, Path]]:
    """A daemon's groups as systemd makes them; the first group carries the mark of delegation."""
    made = UNIFIED / f"xenpod-test-{os.getpid()}", MEMORY / f"xenpod-test-{os.getpid()}"
    for one in made:
        one.mkdir()
    os.setxattr(made[0], "trusted.delegate", b"1")
    yield made
    for one in made:
        for below in (*(each for each in one.iterdir() if each.is_dir()), one):
            below.rmdir()


def _said(program: str, *groups: Path) -> str:
    command = [sys.executable, "-c", program]
    if groups:
        command = ["/bin/sh", "-c", BECOME, *map(str, groups), *command]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True, text=True
    ).stdout


def test_workers_together_have_a_limit_of_memory(groups: tuple[Path, Path]) -> None:
    assert f"memory:/{groups[1].name}/image-workers\n" in _said(PULLING, *groups)
    most = int((groups[1] / "image-workers/memory.limit_in_bytes").read_text())
    assert most == (ImageLimits().memory_bytes + OWN_BYTES) * 3 // 2


def test_a_process_beyond_the_limit_of_its_group_is_killed(groups: tuple[Path, Path]) -> None:
    assert int(_said(GREEDY, *groups)) == -signal.SIGKILL


def test_missing_delegated_group_is_logged_as_no_limit() -> None:
    assert "workers of images have no limit of memory together but" in _said(PULLING)
