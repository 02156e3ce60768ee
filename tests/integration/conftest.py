"""Fixtures of tests that run the real daemons."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support import busybox


@pytest.fixture(scope="session")
def busybox_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A squashfs with busybox in it."""
    if not busybox.BUSYBOX.exists() or shutil.which("mksquashfs") is None:
        pytest.skip("needs busybox and squashfs-tools (make setup)")
    folder = tmp_path_factory.mktemp("image")
    return busybox.build(folder / "busybox.squashfs", folder / "root")
