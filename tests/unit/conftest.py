"""Fixtures of tests without requirements."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protect.assembly import Assembly
from tests.support.agent.agent_sim import SimAgent
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.protect_node import running, zone_spec


@pytest.fixture
def toolstack() -> MemoryToolstack:
    return MemoryToolstack()


@pytest.fixture
async def protectd(tmp_path: Path, toolstack: MemoryToolstack) -> AsyncIterator[Assembly]:
    """protectd's logic with one zone, ``z1``; at the end no agent may have met a fault."""
    async with running(tmp_path, toolstack) as protectd:
        await protectd.launcher.launch(zone_spec())
        yield protectd
        assert [fault for domain in toolstack.domains.values() for fault in domain.agent.faults] == []


@pytest.fixture
def agent(protectd: Assembly, toolstack: MemoryToolstack) -> SimAgent:
    """The agent of ``z1``."""
    return toolstack.of_zone("z1").agent
