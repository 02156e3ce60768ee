"""Clusters for the suites, two for each runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.e2e.rig import Rig, rig


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def suite_rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """A cluster whose nodes run the runtime of the fixture's parameter."""
    async with rig(request.param) as made:
        yield made


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def node_rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """A cluster of one node."""
    async with rig(request.param, 1) as made:
        yield made
