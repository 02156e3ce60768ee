"""Keeps the ledger as the kubelet has given granules away.

The kubelet says when it gives granules to a container, and neither to which pod nor when it takes them back.
So a reservation is made for nobody first; what the kubelet says of pods afterwards binds it, and releases it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from daemonkit.backoff import Backoff
from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault
from daemonkit.logs import fields
from dra.granules.devices import PREFIX, reservation_id
from dra.granules.kubelet import Holder
from dra.model import Promise

log = logging.getLogger(__name__)

_PATIENCE = 60.0
"""Seconds after which granules that no pod has shown up with are taken back: the kubelet has refused it."""


class GranuleLedger(Protocol):
    """protectd."""

    async def make(self, wanted: Promise) -> None:
        """Make a reservation, or add pods to it.  Exhausted: it does not fit."""

    async def release(self, claim_uid: str) -> None:
        """Take one back; an unknown one succeeds."""

    async def all(self) -> tuple[Promise, ...]:
        """Each reservation, also those that were not made here."""


class PodNames(Protocol):
    """The API server."""

    async def uid(self, namespace: str, name: str) -> str | None:
        """The uid of a pod of this node; None: there is none.  Unreachable, Denied."""


@dataclass(frozen=True, slots=True)
class _Pending:
    granules: frozenset[str]
    until: float


class Holdings:
    """Which granules are held.  ``holders`` asks the kubelet, ``changed`` is told after each change."""

    def __init__(
        self,
        size: int,
        ledger: GranuleLedger,
        holders: Callable[[], Awaitable[list[Holder]]],
        pods: PodNames,
        changed: Callable[[], Awaitable[None]],
    ) -> None:
        self._size = size
        self._ledger = ledger
        self._holders = holders
        self._pods = pods
        self._changed = changed
        self._pending: dict[str, _Pending] = {}
        self._held: dict[str, Holder] = {}
        self._bound: dict[str, str] = {}
        self._lock = asyncio.Lock()
        self._given = asyncio.Event()

    @property
    def granules(self) -> frozenset[str]:
        """All that containers have, or are about to."""
        held = (name for one in self._held.values() for name in one.granules)
        return frozenset(held).union(*(one.granules for one in self._pending.values()))

    async def allocate(self, granules: tuple[str, ...]) -> None:
        """Reserve granules that the kubelet gives away.  Exhausted: the host has lost their memory."""
        wanted = frozenset(granules)
        reservation = reservation_id(wanted)
        async with self._lock:
            # What is given away anew has come back before.
            for old in {reservation, *self._of(wanted)}:
                self._forget(old)
                await self._ledger.release(old)
            checkpoint("granules-allocate.released")
            await self._ledger.make(Promise(reservation, len(wanted) * self._size, ()))
            checkpoint("granules-allocate.reserved")
            until = asyncio.get_running_loop().time() + _PATIENCE
            self._pending[reservation] = _Pending(wanted, until)
        log.info("granules reserved", extra=fields(reservation=reservation, count=len(wanted)))
        self._given.set()

    def _of(self, granules: frozenset[str]) -> list[str]:
        """The reservations of any of these granules, as far as they are known here."""
        held = [one for one, holder in self._held.items() if granules.intersection(holder.granules)]
        return held + [one for one, pending in self._pending.items() if pending.granules & granules]

    def _forget(self, reservation: str) -> None:
        for known in (self._held, self._pending, self._bound):
            known.pop(reservation, None)

    async def keep(self, interval: float) -> None:
        """Bind and release for as long as the daemon runs: soon after each allocation, and now and then.

        The kubelet has no event of either.
        """
        soon = Backoff(0.02, 1.0)
        while True:
            self._given.clear()
            try:
                await self._follow()
            except Fault as fault:
                log.warning("%s", fault)
            await self._changed()
            if self._pending:
                await asyncio.sleep(soon.delay())
                continue
            soon.reset()
            try:
                await asyncio.wait_for(self._given.wait(), interval)
            except TimeoutError:
                continue

    async def _follow(self) -> None:
        async with self._lock:  # nothing is given away between the two questions
            found = {reservation_id(one.granules): one for one in await self._holders()}
            there = {one.claim_uid: one.pod_uids for one in await self._ledger.all()}
            now = asyncio.get_running_loop().time()
            waiting = {one: pending for one, pending in self._pending.items() if pending.until > now}
            self._pending = {one: pending for one, pending in waiting.items() if one not in found}
            self._held = found
            self._bound = {one: uid for one, uid in self._bound.items() if one in found and one in there}
            for reservation in there:
                if reservation.startswith(PREFIX) and reservation not in {*found, *self._pending}:
                    await self._ledger.release(reservation)
                    checkpoint("granules-follow.released")
                    log.info("granules released", extra=fields(reservation=reservation))
        for reservation, holder in found.items():
            if reservation not in self._bound:
                await self._bind(reservation, holder)

    async def _bind(self, reservation: str, holder: Holder) -> None:
        uid = await self._pods.uid(holder.namespace, holder.pod)
        if uid is None or reservation not in self._held:
            return  # it has been removed, and the kubelet will say so
        await self._ledger.make(Promise(reservation, len(set(holder.granules)) * self._size, (uid,)))
        self._bound[reservation] = uid
        checkpoint("granules-follow.bound")
        pod = f"{holder.namespace}/{holder.pod}"
        log.info("granules bound", extra=fields(reservation=reservation, pod=pod, uid=uid))
