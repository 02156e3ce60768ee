"""Nobody else may read the daemons' databases: they contain pods' environments with their passwords."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from cri.state.database import Database
from images.store.db import ImageDb
from protect.state.store import SqliteStore


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """Files are made readable for all, unless their maker sets a mode."""
    before = os.umask(0o022)
    yield
    os.umask(before)


async def _open(kind: str, path: Path) -> list[int]:
    """Open and close a database; returns the modes of its files while open."""
    if kind == "zones":
        zones = SqliteStore(path)
        modes = _modes(path)
        zones.close()
    elif kind == "pods":
        pods = await Database.open(path)
        modes = _modes(path)
        await pods.close()
    else:
        images = ImageDb(path)
        modes = _modes(path)
        images.close()
    return modes


def _modes(path: Path) -> list[int]:
    return [stat.S_IMODE(each.stat().st_mode) for each in sorted(path.parent.iterdir())]


@pytest.mark.parametrize("kind", ["zones", "pods", "images"])
async def test_no_other_user_reads_a_database(kind: str, tmp_path: Path) -> None:
    assert await _open(kind, tmp_path / "state.db") == [0o600] * 3


@pytest.mark.parametrize("kind", ["zones", "pods", "images"])
async def test_database_readable_by_all_is_closed(kind: str, tmp_path: Path) -> None:
    """As after a backup that was copied without modes."""
    path = tmp_path / "state.db"
    await _open(kind, path)
    for each in tmp_path.iterdir():
        each.chmod(0o644)
    assert set(await _open(kind, path)) == {0o600}
