"""CPU time of each tenant's ended workers: a tenant with a debt gets only idle time for new workers.

Without accounts a tenant could have many short pulls, each of which ends before it becomes low priority.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import blake2b

from daemonkit.loop.token_bucket import TokenBucket

TENANT_BYTES = 8
"""Size of a tenant's key."""
HOST = bytes(TENANT_BYTES)
"""The key of the operator's own work, which has no account."""
BURST_SECONDS = 0.1
"""CPU time that a tenant may use at once: enough for a whole small image."""
# CPU seconds that a tenant earns each second. A debt is settled after at most 10 s.
_RATE = 0.02
_LARGEST_DEBT_SECONDS = 0.2
# Accounts before those without a debt are closed.
_MOST_ACCOUNTS = 1024


def tenant_key(tenant: str) -> bytes:
    """A key of fixed size for the tenant; "" is the operator, or this host."""
    return blake2b(tenant.encode(), digest_size=TENANT_BYTES).digest() if tenant else HOST


class CpuAccounts:
    """A balance for each tenant, in CPU seconds: at most BURST_SECONDS, negative in debt."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: dict[bytes, TokenBucket] = {}

    def in_debt(self, tenant: bytes) -> bool:
        """Whether the tenant has used more than its share lately."""
        account = self._accounts.get(tenant)
        return account is not None and account.left() < 0

    def charge(self, tenant: bytes, seconds: float) -> None:
        """Take CPU time off the tenant's balance."""
        if tenant == HOST:
            return
        if len(self._accounts) >= _MOST_ACCOUNTS:
            self._close_full_accounts()
        if (account := self._accounts.get(tenant)) is None:
            account = self._accounts[tenant] = TokenBucket(BURST_SECONDS, _RATE, self._clock)
        account.charge(seconds, _LARGEST_DEBT_SECONDS)

    def _close_full_accounts(self) -> None:
        # Every account that is not full has cost CPU time: their number is bounded by the host's CPUs.
        full = [tenant for tenant, account in self._accounts.items() if account.left() >= BURST_SECONDS]
        for tenant in full:
            del self._accounts[tenant]
