"""Fixtures: a zone's area of volumes, and a directory of the host's to show there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from protect.host import mounts
from protect.volumes.area import Area


def show(area: Area, source: Path, name: str, *, add: int = 0, propagation: int = mounts.MS_PRIVATE) -> None:
    """Attach a directory or file of the host as protectd does, as ``w/<name>``."""
    tree = mounts.clone(source, recursive=True)
    attributes = add | mounts.MOUNT_ATTR_NOSUID | mounts.MOUNT_ATTR_NODEV
    mounts.change(tree, add=attributes, propagation=propagation, recursive=True)
    area.attach("w", name, tree, directory=source.is_dir())
    os.close(tree)


@pytest.fixture
def area(tmp_path: Path) -> Iterator[Area]:
    """An area like protectd's for each zone; nothing of the area may be left."""
    made = Area(tmp_path / "volumes/z")
    made.make()
    try:
        yield made
    finally:
        made.remove()
        assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
        assert not made.root.exists()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory of the host's."""
    found = tmp_path / "source"
    found.mkdir()
    (found / "marker").write_text("of the host\n")
    return found


@pytest.fixture
def shown(area: Area, source: Path) -> Path:
    """The same directory, which the zone has as w/0, to write."""
    show(area, source, "0")
    return source
