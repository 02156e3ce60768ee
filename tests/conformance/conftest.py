"""One node for all of the suite: ``--toolstack=fake`` (default), or ``libxl`` in a Xen dom0."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.cri.conformance import SuiteStage, staged
from tests.xen.machine import is_dom0
from tools.localnode.cri_client import Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def session_stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SuiteStage]:
    toolstack = request.config.getoption("toolstack")
    if toolstack == "libxl" and not is_dom0():
        pytest.skip("runs in a Xen dom0 (make test-xen boots one)")
    async with staged(tmp_path_factory.mktemp("node"), toolstack) as stage:
        yield stage


@pytest_asyncio.fixture(loop_scope="session")
async def stage(session_stage: SuiteStage) -> AsyncIterator[SuiteStage]:
    """The node; the test's containers are removed after the test."""
    yield session_stage
    await session_stage.tidy()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_pod(session_stage: SuiteStage) -> AsyncIterator[Pod]:
    """A pod for tests that need only containers, which may be privileged."""
    security = cri.LinuxSandboxSecurityContext(privileged=True)
    linux = cri.LinuxPodSandboxConfig(security_context=security)
    async with session_stage.pod("shared", linux=linux) as pod:
        yield pod
