"""Handles what a zone's link reports, all of which comes from the zone and is untrusted."""

from __future__ import annotations

import functools
import logging

from daemonkit.logs import fields
from protect.agent.link import AgentLink
from protect.model.checks import printable
from protect.model.events import ZoneSeen
from protect.model.process import AgentHello, ProcessExited
from protect.state.manager import ZoneManager
from protect.state.runtime import ZoneRuntime
from protect.workloads import exits
from protect.zones import deaths
from protect.zones.recovery import resync, strangers

log = logging.getLogger(__name__)


def new_link(manager: ZoneManager, runtime: ZoneRuntime) -> AgentLink:
    """Make a link to the agent in the zone's domain, without opening it."""
    dial = functools.partial(manager.toolstack.open_channel, runtime.zone.domain_id)
    return manager.links(runtime.id, dial, ZoneEvents(manager, runtime))


class ZoneEvents:
    """Implements ``LinkEvents`` for one zone."""

    def __init__(self, manager: ZoneManager, runtime: ZoneRuntime) -> None:
        self._manager = manager
        self._runtime = runtime

    async def connected(self, hello: AgentHello, new_boot: bool) -> None:
        """Bring the registries up to date; during a launch there is nothing in them yet."""
        runtime, tasks = self._runtime, self._manager.tasks
        if not runtime.running:
            return
        if not runtime.zone.boot_id:  # adopted by its mark, which does not have it
            await strangers.empty(self._manager, runtime, hello)
        if runtime.zone.boot_id != hello.boot_id.hex():
            # One domain boots once; another agent in it has none of our workloads.
            log.error("another agent answers in the zone", extra=fields(zone=runtime.id))
            killing = deaths.kill(self._manager, runtime, "another agent answers in it")
            tasks.spawn(killing, f"end zone {runtime.id}")
            return
        await resync.resync(self._manager, runtime)
        tasks.spawn(resync.finish_intents(self._manager, runtime), f"finish in zone {runtime.id}")
        self._manager.hub.publish(ZoneSeen(runtime.zone, runtime.connected))

    def process_exited(self, exited: ProcessExited) -> None:
        exits.on_exit(self._manager, self._runtime, exited)

    def violation(self, cause: str) -> None:
        """Kill a running zone whose link was cut off, since nobody knows any more what runs in it."""
        runtime = self._runtime
        reason = f"its agent broke the channel's rules: {printable(cause, 200)}"
        log.warning("zone cut off", extra=fields(zone=runtime.id, reason=reason))
        self._manager.tasks.spawn(deaths.kill(self._manager, runtime, reason), f"end zone {runtime.id}")
