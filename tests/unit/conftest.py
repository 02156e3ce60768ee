"""Fixtures of tests without requirements."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protect.state.manager import ZoneManager
from protect.zones import launch
from tests.support.agent.agent_sim import SimAgent
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.protect_node import running, zone_spec


@pytest.fixture
def toolstack() -> MemoryToolstack:
    return MemoryToolstack()


@pytest.fixture
async def manager(tmp_path: Path, toolstack: MemoryToolstack) -> AsyncIterator[ZoneManager]:
    """protectd's logic with one zone, ``z1``; at the end no agent may have met a fault."""
    async with running(tmp_path, toolstack) as manager:
        await launch.launch(manager, zone_spec())
        yield manager
        assert [fault for domain in toolstack.domains.values() for fault in domain.agent.faults] == []


@pytest.fixture
def agent(manager: ZoneManager, toolstack: MemoryToolstack) -> SimAgent:
    """The agent of ``z1``."""
    return toolstack.of_zone("z1").agent
