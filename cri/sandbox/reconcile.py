"""Reconciles records with reality: finishes work that a killed daemon or a failed undo left half-done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from cri.container.remove import RemoveContainer
from cri.container.shares import PodShares
from cri.sandbox.remove import RemoveSandbox
from cri.state.container import ContainerPhase
from cri.state.pod_records import PodRecords
from cri.state.sandbox import SandboxPhase
from cri.state.unfinished import Unfinished
from daemonkit.faults import Fault
from daemonkit.logs import fields

log = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0


class Reconciler:
    """Run ``run`` as a task.

    Records from before the daemon's start are finished in any phase: no task works on them.
    """

    def __init__(
        self,
        records: PodRecords,
        unfinished: Unfinished,
        shares: PodShares,
        remove_sandbox: RemoveSandbox,
        remove_container: RemoveContainer,
    ) -> None:
        self._records = records
        self._unfinished = unfinished
        self._shares = shares
        self._remove_sandbox = remove_sandbox
        self._remove_container = remove_container
        self._inherited = frozenset(s.id for s in records.sandboxes.all()) | {
            c.id for c in records.containers.all()
        }
        self.first_done = asyncio.Event()
        unfinished.set()

    async def run(self, synced: asyncio.Event) -> None:
        """Sweep whenever work is unfinished and ``synced`` is set; retry until nothing is left."""
        while True:
            await self._unfinished.event.wait()
            await synced.wait()
            self._unfinished.event.clear()
            clean = await self._sweep()
            self.first_done.set()
            if not clean:
                await asyncio.sleep(_RETRY_SECONDS)
                self._unfinished.set()

    async def _sweep(self) -> bool:
        """Finish everything, containers first; returns whether nothing is left."""
        done = [await self._container(container.id) for container in self._records.containers.all()]
        done += [await self._sandbox(sandbox.id) for sandbox in self._records.sandboxes.all()]
        return all(done)

    async def _container(self, container_id: str) -> bool:
        match self._records.containers.phase(container_id):
            case ContainerPhase.UNDOING:
                return await self._remove_container.undo(container_id)
            case ContainerPhase.CREATING if container_id in self._inherited:
                return await self._remove_container.undo(container_id)
            case ContainerPhase.REMOVING if container_id in self._inherited:
                return await _succeeds(container_id, self._remove_container.remove_by_id(container_id))
        return True

    async def _sandbox(self, sandbox_id: str) -> bool:
        match self._records.sandboxes.phase(sandbox_id):
            case SandboxPhase.READY:
                return await _succeeds(sandbox_id, self._shares.settle(sandbox_id))
            case SandboxPhase.UNDOING:
                return await self._remove_sandbox.undo(sandbox_id)
            case SandboxPhase.CREATING if sandbox_id in self._inherited:
                return await self._remove_sandbox.undo(sandbox_id)
            case SandboxPhase.STOPPING if sandbox_id in self._inherited:
                return await _succeeds(sandbox_id, self._remove_sandbox.stop_sandbox.stop(sandbox_id))
            case SandboxPhase.REMOVING if sandbox_id in self._inherited:
                return await _succeeds(sandbox_id, self._remove_sandbox.remove(sandbox_id))
        return True


async def _succeeds(subject: str, step: Awaitable[None]) -> bool:
    try:
        await step
    except Fault as fault:
        log.warning("not finished yet: %s", fault, extra=fields(id=subject))
        return False
    return True
