"""Fixtures of tests that need nothing."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tests.support.memory_toolstack import MemoryToolstack

# A machine that stands still for a moment is no fault of what is tested.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture
def toolstack() -> MemoryToolstack:
    return MemoryToolstack()
