"""StopContainer: sends the stop signal, and after the grace period SIGKILL.  Stopping a pod uses ``kill``."""

from __future__ import annotations

import logging
import signal
from dataclasses import dataclass

from cri.state.changes import StateChanges
from cri.state.container import Container, ContainerPhase
from cri.state.records import Records
from cri.zones.client import Zones
from daemonkit.faults import Missing, Refused, TooLate
from daemonkit.logs import fields

log = logging.getLogger(__name__)

_LONGEST_GRACE_SECONDS = 7 * 24 * 3600
_KILL_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class StopContainer:
    """Ends containers, alone or with their pod."""

    containers: Records[Container]
    zones: Zones
    changes: StateChanges

    async def stop(self, wanted: str, grace: int) -> None:
        """End a container after ``grace`` seconds at the latest; 0 kills at once.

        Idempotent; succeeds for an unknown id and for a container that does not run.  No lock is held: a
        second call with a shorter grace period must get through.
        """
        container = self.containers.find_or_none(wanted)
        if container is None or container.phase is not ContainerPhase.RUNNING:
            return
        if grace > 0 and container.stop_signal != signal.SIGKILL:
            await self._signal(container, container.stop_signal)
            try:
                await self._wait(container, min(grace, _LONGEST_GRACE_SECONDS))
            except TooLate:
                pass
            else:
                return
        await self.kill(container)
        if self.containers.phase(container.id) is ContainerPhase.RUNNING:
            raise TooLate("stop container", container.id, "killed, but its zone does not say that it ended")

    async def kill(self, container: Container) -> None:
        """Send SIGKILL and wait; destroying the zone ends a container that survives the wait."""
        try:
            await self._signal(container, signal.SIGKILL)
            await self._wait(container, _KILL_SECONDS)
        except TooLate:
            log.warning("killed, but not seen to end", extra=fields(container=container.id))

    async def _signal(self, container: Container, number: int) -> None:
        """Send a signal; succeeds if the container or its zone has ended."""
        try:
            await self.zones.signal_workload(container.id, number)
        except (Refused, Missing):
            log.debug("it does not run any more", extra=fields(container=container.id))

    async def _wait(self, container: Container, timeout: float) -> None:
        """Wait for the container's end, with its output in the log; TooLate after ``timeout`` seconds."""
        try:
            await self.changes.workload(await self.zones.wait_workload(container.id, timeout))
        except Missing:
            await self.changes.workload_gone(container.id)
