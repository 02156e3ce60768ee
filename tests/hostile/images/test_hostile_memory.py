"""Images with very many entries take memory of workers until the workers end, and no memory of the daemon."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.images.many_entries import Memory

ROOT = Path(__file__).parents[3]
MIB = 1 << 20
IMAGES, ENTRIES = 6, 60_000


@pytest.mark.skipif(shutil.which("tar2sqfs") is None, reason="tar2sqfs is not installed")
def test_images_of_many_entries_at_once_take_no_memory_of_the_daemon(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.hostile.images.many_entries"]
    given = [str(tmp_path), str(IMAGES), str(ENTRIES)]
    # In another process, since making the images takes memory too.
    subprocess.run([*program, "make", *given], cwd=ROOT, check=True)
    done = subprocess.run([*program, *given], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    memory = Memory(**json.loads(done.stdout))
    assert memory.peak - memory.idle < 32 * MIB
    assert memory.after - memory.idle < 16 * MIB
