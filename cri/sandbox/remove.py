"""RemovePodSandbox: stopped first if need be, then its containers and itself are forgotten."""

from __future__ import annotations

import logging
from dataclasses import replace

from cri.container.remove import remove as remove_container
from cri.runtime import Runtime
from cri.sandbox.stop import stop_held
from cri.state.names import sandbox_name
from cri.state.sandbox import Sandbox, SandboxPhase
from cri.together import each, to_end
from daemonkit.checkpoints import checkpoint, declare
from daemonkit.faults import Missing
from daemonkit.logs import fields

log = logging.getLogger(__name__)

declare("remove-pod.recorded", "remove-pod.containers-removed", "remove-pod.forgotten")


async def remove(runtime: Runtime, wanted: str) -> None:
    """Idempotent; an unknown id succeeds, a running pod is stopped by force."""
    try:
        sandbox_id = runtime.sandboxes.find(wanted).id
    except Missing:
        return
    async with runtime.locks.hold(sandbox_id):
        if runtime.sandboxes.has(sandbox_id):
            await to_end(remove_held(runtime, runtime.sandboxes.get(sandbox_id)))


async def remove_held(runtime: Runtime, sandbox: Sandbox) -> None:
    """The same for one whose lock is held."""
    await stop_held(runtime, sandbox)
    await runtime.sandboxes.put(replace(runtime.sandboxes.get(sandbox.id), phase=SandboxPhase.REMOVING))
    checkpoint("remove-pod.recorded")
    await each([remove_container(runtime, container.id) for container in runtime.containers_of(sandbox.id)])
    checkpoint("remove-pod.containers-removed")
    await runtime.sandboxes.drop(sandbox.id)
    checkpoint("remove-pod.forgotten")
    runtime.sandbox_names.release(sandbox_name(sandbox.config.metadata), sandbox.id)
    log.info("pod removed", extra=fields(sandbox=sandbox.id))
