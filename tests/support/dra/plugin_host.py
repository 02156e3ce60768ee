"""protectd's reservations and devices, for readers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cluster.dra.model import HostDevice, Promise


@dataclass
class HeldHost:
    held: list[Promise] = field(default_factory=list)
    named: list[HostDevice] = field(default_factory=list)

    async def all(self) -> Sequence[Promise]:
        return list(self.held)

    async def devices(self) -> Sequence[HostDevice]:
        return list(self.named)
