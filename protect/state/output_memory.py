"""Memory for output on the way to callers, in shares of the tenants (ADR 63)."""

from __future__ import annotations

from dataclasses import dataclass, field

from daemonkit.shares import Holding, Shares
from protect.state.registry import Registry

MEMORY_BUDGET = 64 << 20
"""Bytes of output in memory for all callers together, beside a chunk for each."""


def _budget() -> Shares:
    return Shares(MEMORY_BUDGET)


@dataclass(frozen=True, slots=True)
class OutputMemory:
    """The budget of all callers.  The registry knows the tenant of a zone."""

    registry: Registry
    shares: Shares = field(default_factory=_budget)

    def of(self, zone_id: str) -> Holding:
        """Memory for a zone's output, from the tenant's share."""
        return Holding(self.shares, self.registry.tenant_of(zone_id))
