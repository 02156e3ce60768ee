"""Finishes what a killed daemon, or a failed undo, left half-done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from cri.container.remove import remove as remove_container
from cri.container.undo import undo as undo_container
from cri.sandbox.remove import remove as remove_sandbox
from cri.sandbox.stop import stop as stop_sandbox
from cri.sandbox.undo import undo as undo_sandbox
from cri.state.container import Phase as ContainerPhase
from cri.state.node import Node
from cri.state.sandbox import Phase as SandboxPhase
from daemonkit.faults import Fault
from daemonkit.logs import fields

log = logging.getLogger(__name__)

_RETRY = 5.0


class Leftovers:
    """Run ``run`` as a task.  ``inherited``: ids that were there when the daemon started; only of those it is
    known that nobody is at work on them, whatever their phase."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._inherited = frozenset(s.id for s in node.sandboxes.all()) | {
            c.id for c in node.containers.all()
        }
        self.first_done = asyncio.Event()
        node.leftovers.set()

    async def run(self) -> None:
        """Sweep when told to, once protectd is there; again after a while if something stays."""
        node = self._node
        while True:
            await node.leftovers.wait()
            await node.follower.synced.wait()
            node.leftovers.clear()
            clean = await self._sweep()
            self.first_done.set()
            if not clean:
                await asyncio.sleep(_RETRY)
                node.leftovers.set()

    async def _sweep(self) -> bool:
        """Whether nothing is left.  Containers first: a sandbox is dropped after what it holds."""
        node = self._node
        done = [await self._container(container.id) for container in node.containers.all()]
        done += [await self._sandbox(sandbox.id) for sandbox in node.sandboxes.all()]
        return all(done)

    async def _container(self, container_id: str) -> bool:
        node = self._node
        phase = node.containers.get(container_id).phase if node.containers.has(container_id) else None
        match phase:
            case ContainerPhase.UNDOING:
                return await undo_container(node, container_id)
            case ContainerPhase.CREATING if container_id in self._inherited:
                return await undo_container(node, container_id)
            case ContainerPhase.REMOVING if container_id in self._inherited:
                return await _tried(container_id, remove_container(node, container_id))
        return True

    async def _sandbox(self, sandbox_id: str) -> bool:
        node = self._node
        phase = node.sandboxes.get(sandbox_id).phase if node.sandboxes.has(sandbox_id) else None
        match phase:
            case SandboxPhase.UNDOING:
                return await undo_sandbox(node, sandbox_id)
            case SandboxPhase.CREATING if sandbox_id in self._inherited:
                return await undo_sandbox(node, sandbox_id)
            case SandboxPhase.STOPPING if sandbox_id in self._inherited:
                return await _tried(sandbox_id, stop_sandbox(node, sandbox_id))
            case SandboxPhase.REMOVING if sandbox_id in self._inherited:
                return await _tried(sandbox_id, remove_sandbox(node, sandbox_id))
        return True


async def _tried(subject: str, step: Awaitable[None]) -> bool:
    try:
        await step
    except Fault as fault:
        log.warning("not finished yet: %s", fault, extra=fields(id=subject))
        return False
    return True
