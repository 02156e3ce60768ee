"""StopPodSandbox: ends a pod's containers, then its zone and its network; records and logs stay."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from cri.container.stop import kill
from cri.runtime import Runtime
from cri.sandbox import kernel
from cri.state.container import Container, ContainerPhase
from cri.state.sandbox import Sandbox, SandboxPhase
from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault, Unreachable
from daemonkit.logs import fields
from daemonkit.tasks import complete, complete_all

log = logging.getLogger(__name__)

_STOPPED = frozenset({SandboxPhase.STOPPED, SandboxPhase.REMOVING})
_KILLED = 128 + 9
_OUT_OF_REACH = 3.0
"""Seconds to wait for an unreachable zone before destroying the zone with its containers."""
_AGAIN = 0.2


async def stop(runtime: Runtime, wanted: str) -> None:
    """Stop a pod, even if the caller is cancelled.  Idempotent; an unknown id succeeds."""
    found = runtime.sandboxes.find_or_none(wanted)
    if found is None:
        return
    async with runtime.locks.hold(found.id):
        if runtime.sandboxes.has(found.id):
            await complete(stop_locked(runtime, runtime.sandboxes.get(found.id)))


async def stop_locked(runtime: Runtime, sandbox: Sandbox) -> None:
    """Stop a pod whose lock the caller holds."""
    if sandbox.phase in _STOPPED:
        return
    await runtime.sandboxes.put(replace(sandbox, phase=SandboxPhase.STOPPING))
    checkpoint("stop-pod.recorded")
    running = [c for c in runtime.containers_of(sandbox.id) if c.phase is ContainerPhase.RUNNING]
    await complete_all([_end(runtime, container) for container in running])
    checkpoint("stop-pod.containers-ended")
    await teardown(runtime, sandbox)
    checkpoint("stop-pod.torn-down")
    for container in runtime.containers_of(sandbox.id):
        if container.live:
            await runtime.changes.lost(container.id, "Error", "its pod was stopped", _KILLED)
    await runtime.sandboxes.put(replace(runtime.sandboxes.get(sandbox.id), phase=SandboxPhase.STOPPED))
    checkpoint("stop-pod.stopped")
    log.info("pod stopped", extra=fields(sandbox=sandbox.id))


async def _end(runtime: Runtime, container: Container) -> None:
    """Kill a container.  A failure is only logged: the zone is destroyed next, with all its containers.

    An unreachable zone gets a little time to deliver the last output of its containers.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + _OUT_OF_REACH
    while True:
        try:
            return await kill(runtime, container)
        except Fault as fault:
            if not isinstance(fault, Unreachable) or loop.time() >= until:
                log.warning("not killed before its zone: %s", fault, extra=fields(container=container.id))
                return
        await asyncio.sleep(_AGAIN)


async def teardown(runtime: Runtime, sandbox: Sandbox) -> None:
    """Remove the zone and the network that RunPodSandbox made.  May be repeated.

    Both are tried; the first failure is raised.
    """
    await complete_all([_destroy_zone(runtime, sandbox), _detach_network(runtime, sandbox)])


async def _destroy_zone(runtime: Runtime, sandbox: Sandbox) -> None:
    await runtime.zones.destroy_zone(sandbox.id)
    kernel.release(runtime, sandbox.id)
    checkpoint("teardown.zone-destroyed")


async def _detach_network(runtime: Runtime, sandbox: Sandbox) -> None:
    await runtime.network.detach(sandbox.attachment)
    checkpoint("teardown.network-detached")
