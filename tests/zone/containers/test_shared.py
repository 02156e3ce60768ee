"""The directory of volumes: what the agent does of what XENPOD_SHARED says."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from protect.host import mounts
from protect.volumes.area import Area
from tests.support.agent.zone import Zone
from tests.support.agent.zone_client import DEADLINE

pytestmark = pytest.mark.root


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "zone"
    made.mkdir()
    return made


def test_a_mount_that_is_handed_over(
    directory: Path, root: Path, cgroups: list[Path], area: Area, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/marker").touch()
    zone = Zone(directory, root, cgroups, shared=area.namespace, XENPOD_SHARED="fd:4")
    try:
        zone.unpause()
        zone.connect().close()
        there = Path(f"/proc/{zone.pid}/root/run/xenpod/shared")
        assert os.listdir(there) == []
        tree = mounts.clone(tmp_path / "source", recursive=False)
        mounts.change(tree, propagation=mounts.MS_PRIVATE, recursive=False)
        area.attach("w", "0", tree, directory=True)
        os.close(tree)
        assert os.listdir(there / "w/0") == ["marker"]
        with pytest.raises(OSError, match="Read-only"):
            (there / "w/new").touch()
        area.detach("w")
        assert os.listdir(there) == []
        links = [os.readlink(f"/proc/{zone.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{zone.pid}/fd")]
        assert not [link for link in links if link == "/"], "the descriptor is closed"
    finally:
        zone.destroy()


def test_none(zone: Zone) -> None:
    assert not Path(f"/proc/{zone.pid}/root/run/xenpod/shared").exists()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("nonsense", "neither 9p:<tag> nor fd:<number>"),
        ("fd:x", "neither 9p:<tag> nor fd:<number>"),
        ("fd:77", "move_mount"),
        ("9p:xenpod", "/dev/xen/xenbus"),
    ],
)
def test_what_cannot_be_had_ends_the_zone(
    directory: Path, root: Path, cgroups: list[Path], how: str, said: str
) -> None:
    """A zone without its volumes is of no use: better that its start fails, and says why."""
    zone = Zone(directory, root, cgroups, XENPOD_SHARED=how)
    zone.unpause()
    try:
        assert zone.wait_status() == "crash"
        deadline = time.monotonic() + DEADLINE
        while said not in zone.console():
            assert time.monotonic() < deadline, zone.console()
            time.sleep(0.01)
    finally:
        zone.destroy()
