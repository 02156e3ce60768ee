"""StopPodSandbox: its containers end, then its zone and its network go; records and logs stay."""

from __future__ import annotations

import logging
from dataclasses import replace

from cri.container.kill import kill
from cri.sandbox.teardown import teardown
from cri.state.container import Phase as ContainerPhase
from cri.state.node import Node
from cri.state.sandbox import Phase, Sandbox
from cri.together import each, to_end
from daemonkit.checkpoints import checkpoint, declare
from daemonkit.faults import Missing
from daemonkit.logs import fields

log = logging.getLogger(__name__)

declare("stop-pod.recorded", "stop-pod.containers-ended", "stop-pod.torn-down", "stop-pod.stopped")

_STOPPED = frozenset({Phase.STOPPED, Phase.REMOVING})
_KILLED = 128 + 9


async def stop(node: Node, wanted: str) -> None:
    """Idempotent; an unknown id succeeds."""
    try:
        sandbox_id = node.sandboxes.find(wanted).id
    except Missing:
        return
    async with node.locks.hold(sandbox_id):
        if node.sandboxes.has(sandbox_id):
            # Half-way is nowhere: a caller that goes away does not leave the pod between states.
            await to_end(stop_held(node, node.sandboxes.get(sandbox_id)))


async def stop_held(node: Node, sandbox: Sandbox) -> None:
    """The same for one whose lock is held."""
    if sandbox.phase in _STOPPED:
        return
    await node.sandboxes.put(replace(sandbox, phase=Phase.STOPPING))
    checkpoint("stop-pod.recorded")
    await each([kill(node, c) for c in node.containers_of(sandbox.id) if c.phase is ContainerPhase.RUNNING])
    checkpoint("stop-pod.containers-ended")
    await teardown(node, sandbox)
    checkpoint("stop-pod.torn-down")
    for container in node.containers_of(sandbox.id):
        if container.live:
            await node.changes.lost(container.id, "Error", "its pod was stopped", _KILLED)
    await node.sandboxes.put(replace(node.sandboxes.get(sandbox.id), phase=Phase.STOPPED))
    checkpoint("stop-pod.stopped")
    log.info("pod stopped", extra=fields(sandbox=sandbox.id))
