"""Makes a reservation for each claim that the kubelet prepares, and takes it back.

The reservation is the only record: protectd keeps it over restarts and reboots, under the claim's uid.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol
from weakref import WeakValueDictionary

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Missing
from daemonkit.logs import fields
from dra.claims.claim import PREPARE, Allocation, Wanted, allocation
from dra.model import Promise

log = logging.getLogger(__name__)


class ClaimSource(Protocol):
    """The API server."""

    async def claim(self, namespace: str, name: str) -> dict[str, object] | None:
        """A ResourceClaim; None: there is none.  Unreachable, Denied."""


class Reservations(Protocol):
    """protectd."""

    async def make(self, wanted: Promise) -> None:
        """Make a reservation, or add pods to it.  Exhausted: it does not fit; Exists: of another size."""

    async def release(self, claim_uid: str) -> None:
        """Take one back; an unknown one succeeds."""


class Claims:
    """Prepares and unprepares claims, those of one uid one after another."""

    def __init__(self, driver: str, pool: str, source: ClaimSource, reservations: Reservations) -> None:
        self._driver = driver
        self._pool = pool
        self._source = source
        self._reservations = reservations
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def prepare(self, namespace: str, name: str, uid: str) -> Allocation:
        """Reserve what is allocated to a claim; again, it changes nothing but the pods that it is for.

        See ``claim.allocation`` and ``Reservations.make`` for what it raises.
        """
        wanted = Wanted(namespace, name, uid, self._driver, self._pool)
        async with self._lock(uid):
            found = await self._source.claim(namespace, name)
            if found is None:
                raise Missing(PREPARE, str(wanted), "the API server has no such claim")
            allocated = allocation(wanted, found)
            checkpoint("prepare-claim.read")
            # Admin access is to what others have: it takes nothing.
            if allocated.total_bytes:
                pods = allocated.pod_uids
                await self._reservations.make(Promise(uid, allocated.total_bytes, pods, str(wanted)))
            checkpoint("prepare-claim.reserved")
        log.info("claim prepared", extra=fields(claim=str(wanted), uid=uid, bytes=allocated.total_bytes))
        return allocated

    async def unprepare(self, uid: str) -> None:
        """Release what a claim has; the claim itself may be gone by now."""
        async with self._lock(uid):
            await self._reservations.release(uid)
            checkpoint("unprepare-claim.released")
        log.info("claim released", extra=fields(uid=uid))

    def _lock(self, uid: str) -> asyncio.Lock:
        lock = self._locks.get(uid) or asyncio.Lock()
        return self._locks.setdefault(uid, lock)
