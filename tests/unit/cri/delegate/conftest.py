"""Both runtimes in one process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cri.mixed_rig import Mixed, in_front_of
from tests.support.cri.other_runtime import OtherRuntime, other_runtime


@pytest.fixture
async def other(short_path: Path) -> AsyncIterator[OtherRuntime]:
    async with other_runtime(short_path / "other.sock") as made:
        yield made


@pytest.fixture
async def mixed(short_path: Path, other: OtherRuntime) -> AsyncIterator[Mixed]:
    async with in_front_of(short_path, other.path) as ours:
        yield Mixed(ours, other)
