"""Both daemons feed the service manager's watchdog; test_watchdog.py has a daemon that hangs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cri.cri_daemons import CriNode, needs_node
from tests.support.protect.daemons import Daemon

pytestmark = [pytest.mark.root, needs_node]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[CriNode]:
    made = CriNode(tmp_path)
    for daemon in (made.protectd.daemon, made.daemon):
        daemon.environment = {"WATCHDOG_USEC": "200000"}
    await made.start()
    yield made
    await made.close()


async def _heard(daemon: Daemon) -> list[bytes]:
    place = daemon.log.with_suffix(".ready")
    place.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as manager:
        manager.bind(str(place))
        async with asyncio.timeout(60):
            return [await asyncio.get_running_loop().sock_recv(manager, 100) for _ in range(3)]


async def test_healthy_daemons_report_their_health_repeatedly(node: CriNode) -> None:
    for daemon in (node.protectd.daemon, node.daemon):
        assert await _heard(daemon) == [b"WATCHDOG=1"] * 3
