"""Keeps the node's slice as it should be: written when the memory for claims has changed, and no more often.

A claim takes nothing away here: the scheduler subtracts what claims consume.  The slice changes with what
zones without claims have, with the host's memory, and with protectd's absence.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from daemonkit.backoff import Backoff
from daemonkit.faults import Fault, Unsupported
from daemonkit.logs import fields
from dra.config import ClaimSizes
from dra.model import HostMemory
from dra.slices.document import (
    Attributes,
    Document,
    NodeSlice,
    SliceVersion,
    devices,
    document,
    generation,
)

log = logging.getLogger(__name__)

_LONGEST = 300.0
_DEVICE = "memory-"
_AWAY = "protectd-away"


class SliceStore(Protocol):
    """The API server."""

    async def node_uid(self, node: str) -> str: ...
    async def shares_capacity(self, trial: NodeSlice) -> bool: ...
    async def slice(self, name: str) -> Document | None: ...
    async def create(self, wanted: NodeSlice) -> Document: ...
    async def replace(self, wanted: NodeSlice, there: Document) -> Document: ...


@dataclass(frozen=True, slots=True)
class Cadence:
    """Seconds: the least time between two writes, and the time after which the slice is read again."""

    write: float
    check: float


class SliceKeeper:
    """The slice of one node.  ``told``: is given the device's name and why it is unhealthy, "" if not."""

    def __init__(
        self,
        driver: str,
        node: str,
        sizes: ClaimSizes,
        store: SliceStore,
        cadence: Cadence,
        told: Callable[[str, str], None],
    ) -> None:
        self._wanted = NodeSlice(driver, node, "", "", 1, 0, sizes, {})
        self._store = store
        self._cadence = cadence
        self._told = told
        self._there: Document | None = None
        self._changed = asyncio.Event()
        self._known = False

    def show(self, memory: HostMemory | None, attributes: Attributes) -> None:
        """What protectd says now; None: it is away, and the memory is what it said last."""
        step = self._wanted.sizes.step
        wanted = replace(self._wanted, unhealthy=_AWAY)
        if memory is not None:
            claimable = max(memory.claimable, 0) // step * step
            wanted = replace(self._wanted, unhealthy="", claimable=claimable, attributes=attributes)
            self._known = True
        self._wanted = wanted
        self._changed.set()
        if wanted.device:
            self._told(wanted.device, wanted.unhealthy)

    async def keep(self) -> None:
        """Write the slice for as long as the daemon runs; failures are tried again, later and later."""
        backoff, said = Backoff(1.0, _LONGEST), ""
        backoff.delay()
        while True:
            self._changed.clear()
            try:
                if self._known:
                    await self.once()
            except Fault as fault:
                if str(fault) != said:
                    log.warning("%s", fault)
                said, pause = str(fault), backoff.delay()
                self._there = None
                await asyncio.sleep(pause)
                continue
            said = ""
            backoff.reset()
            backoff.delay()
            await asyncio.sleep(self._cadence.write * random.uniform(0.8, 1.2))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._cadence.check * random.uniform(0.8, 1.2)):
                    await self._changed.wait()
                    continue
            self._there = None  # somebody else may have changed it

    async def once(self) -> None:
        """Write the slice if it is not as it should be.  Unsupported: the cluster cannot do that."""
        if self._there is None:
            await self._adopt()
        wanted = self._wanted
        if self._there is not None and _says(self._there, wanted):
            return
        if self._there is None:
            self._there = await self._store.create(wanted)
        else:
            wanted = replace(wanted, generation=generation(self._there) + 1)
            self._there = await self._store.replace(wanted, self._there)
        log.info("slice written", extra=fields(slice=wanted.name, claimable=wanted.claimable))

    async def _adopt(self) -> None:
        """Read what is there: the device keeps its name over restarts."""
        if not self._wanted.node_uid:
            uid = await self._store.node_uid(self._wanted.node)
            self._wanted = replace(self._wanted, node_uid=uid)
        self._there = await self._store.slice(self._wanted.name)
        found = devices(self._there) if self._there is not None else []
        name = str(found[0].get("name")) if found else self._wanted.device or _DEVICE + secrets.token_hex(4)
        if name != self._wanted.device:
            self._wanted = replace(self._wanted, device=name)
            self._told(name, self._wanted.unhealthy)
        if self._there is None and not await self._store.shares_capacity(self._wanted):
            cause = "several claims cannot consume one device's memory here"
            hint = "turn on the feature gate DRAConsumableCapacity"
            raise Unsupported("publish", self._wanted.name, cause, hint)


def _says(there: Document, wanted: NodeSlice) -> bool:
    """Whether an object says what is wanted, whatever its version and generation."""
    version = SliceVersion(str(there.get("apiVersion")).rpartition("/")[2])
    return devices(there) == devices(document(wanted, version))
