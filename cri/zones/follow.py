"""Follows protectd's stream of changes for as long as the daemon runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from cri.zones.client import Zones
from daemonkit.faults import Fault, Unreachable
from daemonkit.logs import fields
from xenpod_proto.protect.v1 import protect_pb2 as pb

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5


class Changes(Protocol):
    """Receives the changes.  Ids are never reused: a late change never concerns a newer zone or workload."""

    def known(self) -> tuple[frozenset[str], frozenset[str]]:
        """Ids of the zones and of the workloads expected in protectd."""
        ...

    async def zone(self, zone: pb.Zone) -> None: ...
    async def zone_gone(self, zone_id: str) -> None: ...
    async def workload(self, workload: pb.Workload) -> None: ...
    async def workload_gone(self, workload_id: str) -> None: ...


class Follower:
    """Run ``run`` as a task; ``synced`` is set while our records agree with protectd."""

    def __init__(self, zones: Zones, changes: Changes, on_synced: Callable[[], None]) -> None:
        self._zones = zones
        self._changes = changes
        self._on_synced = on_synced
        self.synced = asyncio.Event()
        self.syncs = 0
        """Number of times that ``synced`` was set; an increase may mean a restart of protectd."""
        self.trouble = "protectd has not answered yet"
        """Why the records do not agree with protectd; "" while they agree."""

    async def run(self) -> None:
        """Follow, and reconnect after protectd was away; ends only by cancellation."""
        while True:
            try:
                await self._follow()
                self.trouble = "protectd ended its stream of changes"
            except Fault as fault:
                self.trouble = str(fault)
            finally:
                self.synced.clear()
            log.warning("lost protectd", extra=fields(cause=self.trouble))
            # The call itself waits while protectd is away; this pause is for a protectd that refuses.
            await asyncio.sleep(_RETRY_SECONDS)

    async def _follow(self) -> None:
        # Taken before the call: a newer zone or workload may be missing in the snapshot without being gone.
        zones, workloads = (set(ids) for ids in self._changes.known())
        found: list[pb.Zone] = []
        async for event in self._zones.watch():
            kind = event.WhichOneof("event")
            if not self.synced.is_set():
                zones.discard(event.zone.id)
                workloads.discard(event.workload.id)
            if kind == "synced":
                await self._finish_snapshot(found, zones, workloads)
            elif kind == "zone" and not self.synced.is_set():
                found.append(event.zone)
            elif kind is not None:
                await self._apply(kind, event)

    async def _finish_snapshot(self, found: Sequence[pb.Zone], zones: set[str], workloads: set[str]) -> None:
        for workload_id in workloads:
            await self._changes.workload_gone(workload_id)
        # After the workloads, which have ends of their own: a dead zone ends its remaining workloads.
        for zone in found:
            await self._changes.zone(zone)
        for zone_id in zones:
            await self._changes.zone_gone(zone_id)
        self.syncs += 1
        self.trouble = ""
        self.synced.set()
        log.info("in step with protectd")
        self._on_synced()

    async def _apply(self, kind: str, event: pb.WatchEvent) -> None:
        match kind:
            case "zone":
                await self._changes.zone(event.zone)
            case "zone_gone":
                await self._changes.zone_gone(event.zone_gone)
            case "workload":
                await self._changes.workload(event.workload)
            case "workload_gone":
                await self._changes.workload_gone(event.workload_gone)


class HostInfo:
    """protectd's facts about the host, cached for as long as the stream of changes goes on.

    ``seclabels``: the labels of all handlers; protectd says whether the hypervisor knows them.
    """

    def __init__(self, zones: Zones, follower: Follower, seclabels: Sequence[str] = ()) -> None:
        self._seclabels = sorted({*seclabels} - {""})
        self._zones = zones
        self._follower = follower
        self._kept: tuple[int, pb.InfoResponse] | None = None

    async def info(self, *, fresh: bool = False) -> pb.InfoResponse:
        """The facts; Unreachable, with the reason, while protectd is away.

        Changing figures are from the last call; ``fresh`` makes a new call.
        """
        if not self._follower.synced.is_set():
            raise Unreachable("ask protectd about", "the host", self._follower.trouble)
        age = self._follower.syncs
        if fresh or self._kept is None or self._kept[0] != age:
            self._kept = (age, await self._zones.info(self._seclabels))
        return self._kept[1]
