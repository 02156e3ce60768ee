"""A cluster for all of these tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.cluster import cluster as support
from tests.support.cluster.cluster import Cluster


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def session_cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with support.cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(session_cluster: Cluster) -> AsyncIterator[Cluster]:
    """The cluster; the test's pods are removed after the test."""
    yield session_cluster
    await session_cluster.tidy()
