"""Pools shared by several tenants; no tenant can take a whole pool (docs/adr/0063-shares.md).

The rule: after each grant a tenant holds no more than is left free.  A single tenant gets half of a pool, the
next tenant half of the rest, and so on: a newcomer always finds something free.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Shares:
    """Units of a pool (slots, or bytes), counted by tenant.  Safe to use from any thread."""

    def __init__(self, total: int) -> None:
        self._free = total
        self._held: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, tenant: str, amount: int = 1) -> bool:
        """Take units, all or none; returns whether the tenant's share allowed them."""
        with self._lock:
            if self._held[tenant] + amount > self._free:
                return False
            self._held[tenant] += amount
            self._free -= amount
            return True

    def give(self, tenant: str, amount: int = 1) -> None:
        """Give units back."""
        with self._lock:
            self._free += amount
            self._held[tenant] -= amount
            if not self._held[tenant]:
                del self._held[tenant]

    def held(self, tenant: str) -> int:
        """The units held by a tenant."""
        return self._held[tenant]

    @property
    def free(self) -> int:
        """The free units."""
        return self._free


class Holding:
    """A holder's part of its tenant's share, for example a queue; close() gives everything back."""

    def __init__(self, shares: Shares, tenant: str) -> None:
        self._shares = shares
        self._tenant = tenant
        self._held = 0
        self._closed = False

    def grow(self, amount: int) -> bool:
        """Take more units; returns whether the tenant's share allowed them."""
        if self._closed or not self._shares.take(self._tenant, amount):
            return False
        self._held += amount
        return True

    def at_most(self, amount: int) -> None:
        """Give back everything beyond ``amount``."""
        if self._held > amount:
            self._shares.give(self._tenant, self._held - amount)
            self._held = amount

    def close(self) -> None:
        """Give everything back, and take no more; may be repeated."""
        self._closed = True
        self.at_most(0)


def uncounted() -> Holding:
    """A holding of an unlimited pool, for a queue with its own limit."""
    return Holding(Shares(sys.maxsize), "")


class FairSlots:
    """A semaphore with shares: a tenant over its share waits, and the tenant with the fewest slots is next.

    Waiters of one tenant are served in order of arrival.
    """

    def __init__(self, total: int) -> None:
        self._shares = Shares(total)
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncIterator[None]:
        """Hold a slot while the body runs."""
        await self._acquire(tenant)
        try:
            yield
        finally:
            self._release(tenant)

    async def _acquire(self, tenant: str) -> None:
        if tenant not in self._waiting and self._shares.take(tenant):
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(tenant, turn)
            else:
                # The slot was granted at the same moment.
                self._release(tenant)
            raise

    def _leave(self, tenant: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting[tenant]
        turns.remove(turn)
        if not turns:
            del self._waiting[tenant]

    def _release(self, tenant: str) -> None:
        self._shares.give(tenant)
        while self._grant():
            pass

    def _grant(self) -> bool:
        """Grant a slot to a waiter of the tenant with the fewest slots, if its share allows."""
        tenant = min(self._waiting, key=self._shares.held, default=None)
        if tenant is None or not self._shares.take(tenant):
            return False
        turns = self._waiting.pop(tenant)
        turns.popleft().set_result(None)
        if turns:
            # At the end: among equal tenants, another one is next.
            self._waiting[tenant] = turns
        return True
