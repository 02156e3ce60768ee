"""Reconciles records with reality: finishes work that a killed daemon or a failed undo left half-done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from cri.container.remove import remove_by_id as remove_container
from cri.container.remove import undo as undo_container
from cri.container.shares import settle
from cri.runtime import Runtime
from cri.sandbox.remove import remove as remove_sandbox
from cri.sandbox.remove import undo as undo_sandbox
from cri.sandbox.stop import stop as stop_sandbox
from cri.state.container import ContainerPhase
from cri.state.sandbox import SandboxPhase
from daemonkit.faults import Fault
from daemonkit.logs import fields

log = logging.getLogger(__name__)

_RETRY = 5.0


class Reconciler:
    """Run ``run`` as a task.

    Records from before the daemon's start are finished in any phase: no task works on them.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._inherited = frozenset(s.id for s in runtime.sandboxes.all()) | {
            c.id for c in runtime.containers.all()
        }
        self.first_done = asyncio.Event()
        runtime.unfinished.set()

    async def run(self) -> None:
        """Sweep whenever ``unfinished`` is set and protectd answers; retry until nothing is left."""
        runtime = self._runtime
        while True:
            await runtime.unfinished.wait()
            await runtime.follower.synced.wait()
            runtime.unfinished.clear()
            clean = await self._sweep()
            self.first_done.set()
            if not clean:
                await asyncio.sleep(_RETRY)
                runtime.unfinished.set()

    async def _sweep(self) -> bool:
        """Finish everything, containers first; returns whether nothing is left."""
        runtime = self._runtime
        done = [await self._container(container.id) for container in runtime.containers.all()]
        done += [await self._sandbox(sandbox.id) for sandbox in runtime.sandboxes.all()]
        return all(done)

    async def _container(self, container_id: str) -> bool:
        runtime = self._runtime
        match runtime.containers.phase(container_id):
            case ContainerPhase.UNDOING:
                return await undo_container(runtime, container_id)
            case ContainerPhase.CREATING if container_id in self._inherited:
                return await undo_container(runtime, container_id)
            case ContainerPhase.REMOVING if container_id in self._inherited:
                return await _succeeds(container_id, remove_container(runtime, container_id))
        return True

    async def _sandbox(self, sandbox_id: str) -> bool:
        runtime = self._runtime
        match runtime.sandboxes.phase(sandbox_id):
            case SandboxPhase.READY:
                return await _succeeds(sandbox_id, settle(runtime, sandbox_id))
            case SandboxPhase.UNDOING:
                return await undo_sandbox(runtime, sandbox_id)
            case SandboxPhase.CREATING if sandbox_id in self._inherited:
                return await undo_sandbox(runtime, sandbox_id)
            case SandboxPhase.STOPPING if sandbox_id in self._inherited:
                return await _succeeds(sandbox_id, stop_sandbox(runtime, sandbox_id))
            case SandboxPhase.REMOVING if sandbox_id in self._inherited:
                return await _succeeds(sandbox_id, remove_sandbox(runtime, sandbox_id))
        return True


async def _succeeds(subject: str, step: Awaitable[None]) -> bool:
    try:
        await step
    except Fault as fault:
        log.warning("not finished yet: %s", fault, extra=fields(id=subject))
        return False
    return True
