"""Fixtures of tests that run the real daemons."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.cri.stage import fresh_stage, module_stage, stage, stage_settings
from tests.support.images import busybox
from tests.support.protect.disk_source import DiskSource
from tests.support.protect.zones import Zones, serving

__all__ = ["fresh_stage", "module_stage", "stage", "stage_settings"]


@pytest.fixture(scope="session")
def busybox_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A squashfs with busybox."""
    if not busybox.BUSYBOX.exists() or shutil.which("mksquashfs") is None:
        pytest.skip("needs busybox and squashfs-tools (make setup)")
    folder = tmp_path_factory.mktemp("image")
    return busybox.build(folder / "busybox.squashfs", folder / "root")


@pytest.fixture
async def zones(tmp_path: Path, busybox_image: Path) -> AsyncIterator[Zones]:
    """A protectd without zones."""
    async with serving(tmp_path, busybox_image) as zones:
        yield zones


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_zones(
    tmp_path_factory: pytest.TempPathFactory, busybox_image: Path, zones_settings: Mapping[str, object]
) -> AsyncIterator[Zones]:
    """The protectd of a test file, with the zones of earlier tests."""
    async with serving(tmp_path_factory.mktemp("zones"), busybox_image, **zones_settings) as zones:
        yield zones


@pytest_asyncio.fixture(loop_scope="module")
async def shared_zones(module_zones: Zones) -> AsyncIterator[Zones]:
    """The protectd of a test file, without zones; the file sets ``loop_scope="module"``."""
    yield module_zones
    await module_zones.tidy()


@pytest.fixture(scope="module")
def zones_settings() -> Mapping[str, object]:
    """Keys of protectd.toml; a test file with other settings overrides this fixture."""
    return {}


@pytest.fixture
def source(tmp_path: Path) -> Iterator[DiskSource]:
    """A directory on a file system of its own."""
    with DiskSource(tmp_path) as source:
        yield source
