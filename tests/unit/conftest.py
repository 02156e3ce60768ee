"""Fixtures of tests that need nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protect.state.node import Node
from protect.zones import launch
from tests.support.agent.agent_sim import SimAgent
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.protect_node import running, zone_spec


@pytest.fixture
def toolstack() -> MemoryToolstack:
    return MemoryToolstack()


@pytest.fixture
async def node(tmp_path: Path, toolstack: MemoryToolstack) -> AsyncIterator[Node]:
    """protectd's logic with one zone, ``z1``; at the end no agent may have met a fault."""
    async with running(tmp_path, toolstack) as node:
        await launch.launch(node, zone_spec())
        yield node
        assert [fault for domain in toolstack.domains.values() for fault in domain.agent.faults] == []


@pytest.fixture
def agent(node: Node, toolstack: MemoryToolstack) -> SimAgent:
    """That of ``z1``."""
    return toolstack.of_zone("z1").agent
