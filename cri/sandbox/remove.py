"""RemovePodSandbox: stopped first if need be, then its containers and itself are forgotten."""

from __future__ import annotations

import logging
from dataclasses import replace

from cri.container.remove import remove as remove_container
from cri.sandbox.stop import stop_held
from cri.state.names import sandbox_name
from cri.state.node import Node
from cri.state.sandbox import Phase, Sandbox
from cri.together import each, to_end
from daemonkit.checkpoints import checkpoint, declare
from daemonkit.faults import Missing
from daemonkit.logs import fields

log = logging.getLogger(__name__)

declare("remove-pod.recorded", "remove-pod.containers-removed", "remove-pod.forgotten")


async def remove(node: Node, wanted: str) -> None:
    """Idempotent; an unknown id succeeds, a running pod is stopped by force."""
    try:
        sandbox_id = node.sandboxes.find(wanted).id
    except Missing:
        return
    async with node.locks.hold(sandbox_id):
        if node.sandboxes.has(sandbox_id):
            await to_end(remove_held(node, node.sandboxes.get(sandbox_id)))


async def remove_held(node: Node, sandbox: Sandbox) -> None:
    """The same for one whose lock is held."""
    await stop_held(node, sandbox)
    await node.sandboxes.put(replace(node.sandboxes.get(sandbox.id), phase=Phase.REMOVING))
    checkpoint("remove-pod.recorded")
    await each([remove_container(node, container.id) for container in node.containers_of(sandbox.id)])
    checkpoint("remove-pod.containers-removed")
    await node.sandboxes.drop(sandbox.id)
    checkpoint("remove-pod.forgotten")
    node.sandbox_names.release(sandbox_name(sandbox.config.metadata), sandbox.id)
    log.info("pod removed", extra=fields(sandbox=sandbox.id))
