"""Fixtures of tests that need nothing."""

from __future__ import annotations

import pytest

from tests.support.memory_toolstack import MemoryToolstack


@pytest.fixture
def toolstack() -> MemoryToolstack:
    return MemoryToolstack()
