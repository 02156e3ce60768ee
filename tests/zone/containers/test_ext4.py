"""The agent's file systems, checked by e2fsck, and mounted by a kernel."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

MIB, GIB = 1 << 20, 1 << 30
GROUP = 128 * MIB
EDGES = [
    *(MIB, 2 * MIB, 64 * MIB),
    *(GROUP + offset for offset in (-4096, 0, 4096, 2 * MIB, 2 * MIB + 140 * 1024, 3 * MIB)),
    *(4 * GROUP, 128 * GROUP, 129 * GROUP, 100 * GIB),
]
needs_e2fsck = pytest.mark.skipif(shutil.which("e2fsck") is None, reason="needs e2fsprogs")


def made(tool: Path, file: Path, size: int, *files: str) -> int:
    """The size of the made file system."""
    done = subprocess.run([tool / "ext4check", file, str(size), *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def complaints(file: Path) -> list[str]:
    """Complaints of e2fsck, except for the missing lost+found."""
    done = subprocess.run(["e2fsck", "-f", "-n", file], capture_output=True, text=True)
    usual = ("Pass ", "e2fsck ", "/lost+found", f"{file}: ")
    return [line for line in (done.stdout + done.stderr).splitlines() if line and not line.startswith(usual)]


@needs_e2fsck
@pytest.mark.parametrize("size", EDGES)
def test_a_filesystem_of_a_size_is_sound(parts: Path, tmp_path: Path, size: int) -> None:
    file = tmp_path / "fs.img"
    assert made(parts, file, size) == size
    assert complaints(file) == []


@needs_e2fsck
def test_a_filesystem_of_any_size_is_sound(parts: Path, tmp_path: Path) -> None:
    draw = random.Random(1)
    for _ in range(40):
        made(parts, tmp_path / "fs.img", draw.randrange(MIB, draw.choice([4 * MIB, GIB, 20 * GIB])), "files")
        assert complaints(tmp_path / "fs.img") == []


@pytest.mark.parametrize("size", [0, 4096, 80 * 1024, 1 << 50])
def test_invalid_size_is_refused(parts: Path, tmp_path: Path, size: int) -> None:
    done = subprocess.run(
        [parts / "ext4check", tmp_path / "fs.img", str(size)], capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stderr


@needs_e2fsck
@pytest.mark.root
@pytest.mark.parametrize("limit", [128 * 1024, MIB, 100 * MIB, 128 * MIB, 300 * MIB])
def test_files_can_have_the_reported_size(parts: Path, tmp_path: Path, limit: int) -> None:
    file, place = tmp_path / "fs.img", tmp_path / "place"
    place.mkdir()
    made(parts, file, limit, "files")
    subprocess.run(["mount", "-o", "loop", file, place], check=True)
    try:
        with (place / "a").open("wb", buffering=0) as big, pytest.raises(OSError, match="No space"):
            for _ in range(limit // 4096 + 1):
                big.write(bytes(4096))
        assert 0.98 * limit <= (place / "a").stat().st_size <= limit
        (place / "a").unlink()
        for number in range(16):
            (place / "directory" / str(number)).mkdir(parents=True)
    finally:
        subprocess.run(["umount", place], check=True)
    assert complaints(file) == []
