"""StopPodSandbox: its containers end, then its zone and its network go; records and logs stay."""

from __future__ import annotations

import logging
from dataclasses import replace

from cri.container.kill import kill
from cri.runtime import Runtime
from cri.sandbox.teardown import teardown
from cri.state.container import ContainerPhase
from cri.state.sandbox import Sandbox, SandboxPhase
from cri.together import each, to_end
from daemonkit.checkpoints import checkpoint, declare
from daemonkit.faults import Missing
from daemonkit.logs import fields

log = logging.getLogger(__name__)

declare("stop-pod.recorded", "stop-pod.containers-ended", "stop-pod.torn-down", "stop-pod.stopped")

_STOPPED = frozenset({SandboxPhase.STOPPED, SandboxPhase.REMOVING})
_KILLED = 128 + 9


async def stop(runtime: Runtime, wanted: str) -> None:
    """Idempotent; an unknown id succeeds."""
    try:
        sandbox_id = runtime.sandboxes.find(wanted).id
    except Missing:
        return
    async with runtime.locks.hold(sandbox_id):
        if runtime.sandboxes.has(sandbox_id):
            # Half-way is nowhere: a caller that goes away does not leave the pod between states.
            await to_end(stop_held(runtime, runtime.sandboxes.get(sandbox_id)))


async def stop_held(runtime: Runtime, sandbox: Sandbox) -> None:
    """The same for one whose lock is held."""
    if sandbox.phase in _STOPPED:
        return
    await runtime.sandboxes.put(replace(sandbox, phase=SandboxPhase.STOPPING))
    checkpoint("stop-pod.recorded")
    await each(
        [kill(runtime, c) for c in runtime.containers_of(sandbox.id) if c.phase is ContainerPhase.RUNNING]
    )
    checkpoint("stop-pod.containers-ended")
    await teardown(runtime, sandbox)
    checkpoint("stop-pod.torn-down")
    for container in runtime.containers_of(sandbox.id):
        if container.live:
            await runtime.changes.lost(container.id, "Error", "its pod was stopped", _KILLED)
    await runtime.sandboxes.put(replace(runtime.sandboxes.get(sandbox.id), phase=SandboxPhase.STOPPED))
    checkpoint("stop-pod.stopped")
    log.info("pod stopped", extra=fields(sandbox=sandbox.id))
