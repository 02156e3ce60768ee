"""Takes readings in the background: a recent CPU rate is always at hand."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator

from cri.state.container import Container
from cri.state.pod_records import PodRecords
from cri.state.sandbox import Sandbox, SandboxPhase
from cri.stats.containers import forget_others
from cri.stats.pods import zone_rows
from cri.stats.rates import Rates
from cri.zones.client import Zones
from daemonkit.faults import Fault

log = logging.getLogger(__name__)

_SETTLE_SECONDS = 1.0
"""Seconds from a start to the first reading; pods that start together are read together."""
_INTERVAL_SECONDS = 10.0
"""Longest time between two readings, in seconds, while callers ask.  Their calls are readings too."""
_QUIET_SECONDS = 60.0
"""The longest interval in seconds, reached step by step without callers.  Reading 250 zones every ten seconds
for no caller took some hundredths of a CPU.
"""
_RETRY_SECONDS = 3.0
"""Seconds until the next try for pods and containers without a reading."""


@contextlib.asynccontextmanager
async def sampling(records: PodRecords, zones: Zones, synced: asyncio.Event) -> AsyncIterator[Rates]:
    """Keep the rates of all running pods and containers recent, while the block runs.

    ``synced``: set while the records agree with protectd.
    """
    sampler = Sampler(records, zones, synced)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sampler.run(), name="sample CPU usage")
        try:
            yield sampler.rates
        finally:
            task.cancel()


class Sampler:
    """Run ``run`` as a task."""

    def __init__(self, records: PodRecords, zones: Zones, synced: asyncio.Event) -> None:
        self.rates = Rates()
        self._records = records
        self._zones = zones
        self._synced = synced
        self._fresh = asyncio.Event()
        """Set when a pod or container without a reading runs."""
        self._fresh.set()
        self.interval = _INTERVAL_SECONDS
        """Longest time between two readings now, in seconds."""
        self._seen = 0
        """Number of readings at our own last reading; callers caused later ones."""
        records.sandboxes.observe(self._sandbox)
        records.containers.observe(self._container)

    async def run(self) -> None:
        """Read new pods and containers, and everything at least every ``interval``, until cancelled."""
        rest = self.interval
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await self._fresh.wait()
            await self._synced.wait()
            self.adapt()
            if self._fresh.is_set():
                await asyncio.sleep(_SETTLE_SECONDS)
            self._fresh.clear()
            rest = self.interval if await self.sample() else _RETRY_SECONDS

    def adapt(self) -> None:
        """Choose the interval: longer than before if no pod is new and no caller has asked since."""
        wanted = self._fresh.is_set() or self.rates.readings > self._seen
        self.interval = _INTERVAL_SECONDS if wanted else min(2 * self.interval, _QUIET_SECONDS)

    async def sample(self) -> bool:
        """Read the due pods; returns whether all running pods and containers have a reading."""
        try:
            await self._read(self._due())
        except Fault as fault:
            log.debug("no readings of CPU usage: %s", fault)
        forget_others(self._records, self.rates)
        self._seen = self.rates.readings
        return all(self.rates.read_ns(sandbox.id) is not None for sandbox in self._due())

    async def _read(self, due: list[Sandbox]) -> None:
        if due:
            for row in (await zone_rows(self._records.sandboxes, self._zones, due)).values():
                self.rates.rate(row.zone_id, row.timestamp_ns, row.cpu_usage_ns)
                for one in row.workloads:
                    self.rates.rate(one.id, one.timestamp_ns, one.cpu_usage_ns)

    def _due(self) -> list[Sandbox]:
        """The pods without a recent reading, or with a container without a reading."""
        recent = time.time_ns() - int(self.interval * 10**9)
        live = [container for container in self._records.containers.all() if container.live]
        unread = {one.sandbox_id for one in live if self.rates.read_ns(one.id) is None}
        return [
            sandbox
            for sandbox in self._records.sandboxes.all()
            if sandbox.phase is SandboxPhase.READY
            and (sandbox.id in unread or (self.rates.read_ns(sandbox.id) or 0) <= recent)
        ]

    def _sandbox(self, before: Sandbox | None, after: Sandbox | None) -> None:
        if after and after.phase is SandboxPhase.READY and (not before or before.phase is not after.phase):
            self._fresh.set()

    def _container(self, before: Container | None, after: Container | None) -> None:
        if after and after.live and not (before and before.live):
            self._fresh.set()
