"""Fixtures of tests that run the real daemons."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.images import busybox
from tests.support.protect.disk_source import DiskSource
from tests.support.protect.zones import Zones, serving


@pytest.fixture(scope="session")
def busybox_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A squashfs with busybox in it."""
    if not busybox.BUSYBOX.exists() or shutil.which("mksquashfs") is None:
        pytest.skip("needs busybox and squashfs-tools (make setup)")
    folder = tmp_path_factory.mktemp("image")
    return busybox.build(folder / "busybox.squashfs", folder / "root")


@pytest.fixture
async def zones(tmp_path: Path, busybox_image: Path) -> AsyncIterator[Zones]:
    """A protectd that has no zone yet."""
    async with serving(tmp_path, busybox_image) as zones:
        yield zones


@pytest.fixture
def source(tmp_path: Path) -> Iterator[DiskSource]:
    """A directory that is a file system of its own."""
    with DiskSource(tmp_path) as source:
        yield source
