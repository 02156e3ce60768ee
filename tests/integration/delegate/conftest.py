"""Both runtimes, started once for each file; each test's pods are removed after it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.delegate import mixed as support
from tests.support.delegate.mixed import Mixed


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_mixed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Mixed]:
    async with support.mixed(tmp_path_factory.mktemp("m")) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def mixed(module_mixed: Mixed) -> AsyncIterator[Mixed]:
    """Both runtimes, without pods of an earlier test."""
    yield module_mixed
    await module_mixed.tidy()
