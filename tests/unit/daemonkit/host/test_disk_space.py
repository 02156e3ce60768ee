"""Disk space: reserved for logs of databases, and checked before anything new starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from daemonkit.faults import Exhausted
from daemonkit.host import disk_space

SIZE = 256 * 1024


def _with_free(monkeypatch: pytest.MonkeyPatch, path: Path, free: int) -> None:
    there = os.statvfs(path)
    fields = list(there)
    fields[1], fields[3] = 4096, free // 4096  # f_frsize, f_bfree
    monkeypatch.setattr(os, "fstatvfs", lambda _: os.statvfs_result(fields))
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(fields))


def test_blocks_are_reserved_and_the_length_stays(tmp_path: Path) -> None:
    log = tmp_path / "state.db-wal"
    log.write_bytes(b"frames")
    disk_space.reserve(tmp_path / "state.db", SIZE)
    assert log.read_bytes() == b"frames" and log.stat().st_blocks * 512 >= SIZE


def test_the_last_space_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _with_free(monkeypatch, tmp_path, SIZE + disk_space.LEAST_BYTES - 4096)
    disk_space.reserve(tmp_path / "state.db", SIZE)
    assert (tmp_path / "state.db-wal").stat().st_blocks == 0


def test_failed_reservation_gives_its_space_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def fallocate(self, descriptor: int, mode: int, offset: int, size: int) -> int:
            assert real.fallocate(descriptor, mode, offset, size) == 0
            return -1

    real = disk_space._libc
    monkeypatch.setattr(disk_space, "_libc", Failing())
    disk_space.reserve(tmp_path / "state.db", SIZE)
    assert (tmp_path / "state.db-wal").stat().st_blocks == 0


def test_free_space_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk_space.check_space(tmp_path)
    _with_free(monkeypatch, tmp_path, disk_space.LEAST_BYTES - 4096)
    with pytest.raises(Exhausted, match="No space left on device .free space in state_dir"):
        disk_space.check_space(tmp_path)
