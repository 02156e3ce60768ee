"""Handles reports of a zone's link.  They come from the zone and are untrusted."""

from __future__ import annotations

import functools
import logging

from daemonkit.logs import fields
from protect.agent.link import AgentLink
from protect.model.checks import printable
from protect.model.events import ZoneSeen
from protect.model.process import AgentHello, ProcessExited
from protect.state.death import DeathKind
from protect.state.manager import ZoneManager
from protect.state.runtime import ZoneRuntime
from protect.workloads import exits
from protect.zones import deaths
from protect.zones.recovery import resync, strangers
from protect.zones.upkeep import clock, silence

log = logging.getLogger(__name__)


def new_link(manager: ZoneManager, runtime: ZoneRuntime) -> AgentLink:
    """Make a closed link to the agent in the zone's domain."""
    dial = functools.partial(manager.toolstack.open_channel, runtime.zone.domain_id)
    return manager.links(runtime.id, dial, ZoneEvents(manager, runtime))


class ZoneEvents:
    """Implements ``LinkEvents`` for one zone."""

    def __init__(self, manager: ZoneManager, runtime: ZoneRuntime) -> None:
        self._manager = manager
        self._runtime = runtime

    async def connected(self, hello: AgentHello, new_boot: bool) -> None:
        """Bring the registries up to date; during a launch they are empty."""
        runtime, tasks = self._runtime, self._manager.tasks
        if not runtime.running:
            return
        if not runtime.zone.boot_id:  # adopted by its mark, without a boot id
            await strangers.empty(self._manager, runtime, hello)
        if runtime.zone.boot_id != hello.boot_id.hex():
            # A domain boots once.  Another agent has none of our workloads.
            log.error("another agent answers in the zone", extra=fields(zone=runtime.id))
            ending = deaths.condemn(
                self._manager, runtime, DeathKind.AGENT_REPLACED, "another agent answers in it"
            )
            tasks.spawn(ending, f"end zone {runtime.id}")
            return
        await resync.resync(self._manager, runtime)
        tasks.spawn(resync.finish_intents(self._manager, runtime), f"finish in zone {runtime.id}")
        runtime.heard.set()
        clock.begin(self._manager, runtime)
        self._manager.zone_changed(runtime)

    def disconnected(self) -> None:
        """Tell watchers, and wait some time for the agent of a running zone."""
        runtime, manager = self._runtime, self._manager
        runtime.heard.clear()
        if runtime.running and not manager.stopping:
            manager.hub.publish(ZoneSeen(runtime.zone, connected=False, paused=runtime.paused))
            manager.tasks.spawn(silence.wait(manager, runtime), f"wait for the agent of {runtime.id}")

    def process_exited(self, exited: ProcessExited) -> None:
        exits.on_exit(self._manager, self._runtime, exited)

    def violation(self, cause: str) -> None:
        """Kill a running zone after a violation: its processes are unknown from then on."""
        runtime = self._runtime
        reason = f"its agent broke the channel's rules: {printable(cause, 200)}"
        log.warning("zone cut off", extra=fields(zone=runtime.id, reason=reason))
        ending = deaths.condemn(self._manager, runtime, DeathKind.RULES_BROKEN, reason)
        self._manager.tasks.spawn(ending, f"end zone {runtime.id}")
