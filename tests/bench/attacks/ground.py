"""Facts for attackers: the node's sockets, pods and images."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from daemonkit.rpc.channels import channel
from tools.localnode.cri_client import Client

EACH = 8
"""Attackers of a kind."""
_TIMEOUT = 900.0


@dataclass(frozen=True, slots=True)
class AttackGround:
    """``socket`` serves CRI, pods log below ``logs``, ``registry`` has the images ``honest`` of other
    tenants.

    ``pods`` are the attackers' own, each with a sleeping container.
    """

    socket: str
    logs: str
    registry: str
    honest: Sequence[str]
    pods: Sequence[str] = ()
    containers: Sequence[str] = ()

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def of(text: str) -> AttackGround:
        return AttackGround(**json.loads(text))

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """An attacker's own connection."""
        async with channel(Path(self.socket)) as link:
            yield Client(link, Path(self.logs), _TIMEOUT)
