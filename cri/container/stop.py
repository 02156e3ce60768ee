"""StopContainer: sends the stop signal, and after the grace period SIGKILL.  Stopping a pod uses ``kill``."""

from __future__ import annotations

import logging
import signal

from cri.runtime import Runtime
from cri.state.container import Container, ContainerPhase
from daemonkit.faults import Missing, Refused, TooLate
from daemonkit.logs import fields

log = logging.getLogger(__name__)

_LONGEST_GRACE = 7 * 24 * 3600
_KILL_TIMEOUT = 15.0


async def stop(runtime: Runtime, wanted: str, grace: int) -> None:
    """End a container after ``grace`` seconds at the latest; 0 kills at once.

    Idempotent; succeeds for an unknown id and for a container that does not run.  No lock is held: a second
    call with a shorter grace period must get through.
    """
    container = runtime.containers.find_or_none(wanted)
    if container is None or container.phase is not ContainerPhase.RUNNING:
        return
    if grace > 0 and container.stop_signal != signal.SIGKILL:
        await _signal(runtime, container, container.stop_signal)
        try:
            await _wait(runtime, container, min(grace, _LONGEST_GRACE))
        except TooLate:
            pass
        else:
            return
    await kill(runtime, container)
    if runtime.containers.phase(container.id) is ContainerPhase.RUNNING:
        raise TooLate("stop container", container.id, "killed, but its zone does not say that it ended")


async def kill(runtime: Runtime, container: Container) -> None:
    """Send SIGKILL and wait; destroying the zone ends a container that survives the wait."""
    try:
        await _signal(runtime, container, signal.SIGKILL)
        await _wait(runtime, container, _KILL_TIMEOUT)
    except TooLate:
        log.warning("killed, but not seen to end", extra=fields(container=container.id))


async def _signal(runtime: Runtime, container: Container, number: int) -> None:
    """Send a signal; succeeds if the container or its zone has ended."""
    try:
        await runtime.zones.signal_workload(container.id, number)
    except (Refused, Missing):
        log.debug("it does not run any more", extra=fields(container=container.id))


async def _wait(runtime: Runtime, container: Container, timeout: float) -> None:
    """Wait until the container has ended and its output is in the log; TooLate after ``timeout`` seconds."""
    try:
        await runtime.changes.workload(await runtime.zones.wait_workload(container.id, timeout))
    except Missing:
        await runtime.changes.workload_gone(container.id)
