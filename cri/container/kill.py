"""Ends a container at once, and learns how it ended."""

from __future__ import annotations

import logging
import signal

from cri.runtime import Runtime
from cri.state.container import Container
from daemonkit.faults import Missing, Refused, TooLate
from daemonkit.logs import fields

log = logging.getLogger(__name__)

_PATIENCE = 15.0


async def kill(runtime: Runtime, container: Container) -> None:
    """SIGKILL and wait; a container that does not end in time is left to whoever takes its zone away."""
    try:
        await signal_it(runtime, container, signal.SIGKILL)
        await wait(runtime, container, _PATIENCE)
    except TooLate:
        log.warning("killed, but not seen to end", extra=fields(container=container.id))


async def signal_it(runtime: Runtime, container: Container, number: int) -> None:
    """Send a signal; one that has ended meanwhile, or with its zone, is fine."""
    try:
        await runtime.zones.signal_workload(container.id, number)
    except (Refused, Missing):
        log.debug("it does not run any more", extra=fields(container=container.id))


async def wait(runtime: Runtime, container: Container, timeout: float) -> None:
    """Until it has ended and its output is in the log; TooLate after ``timeout`` seconds."""
    try:
        await runtime.changes.workload(await runtime.zones.wait_workload(container.id, timeout))
    except Missing:
        await runtime.changes.workload_gone(container.id)
