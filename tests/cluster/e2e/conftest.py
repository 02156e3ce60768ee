"""Clusters for the suites, two for each runtime."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.e2e.rig import Rig, RuntimeName, rig


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def suite_rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """A cluster whose nodes run the runtime of the fixture's parameter."""
    runtime: RuntimeName = request.param
    with tempfile.TemporaryDirectory(prefix="xenpod-e2e-") as folder:
        async with rig(Path(folder), runtime) as made:
            yield made


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def node_rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """A cluster of one node."""
    runtime: RuntimeName = request.param
    with tempfile.TemporaryDirectory(prefix="xenpod-e2e-") as folder:
        async with rig(Path(folder), runtime, 1) as made:
            yield made
