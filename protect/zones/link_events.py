"""Handles reports of a zone's link.  They come from the zone and are untrusted."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass

from daemonkit.logs import fields
from protect.agent.link import AgentLink, LinkFactory
from protect.model.checks import printable
from protect.model.process import AgentHello, ProcessExited
from protect.model.toolstack import Toolstack
from protect.model.watch_events import ZoneSeen
from protect.state.daemon_lifetime import DaemonLifetime
from protect.state.death import DeathKind
from protect.state.registry import Registry
from protect.state.runtime import ZoneRuntime
from protect.workloads.exits import WorkloadExits
from protect.zones.deaths import ZoneDeaths
from protect.zones.recovery.orphans import Orphans
from protect.zones.recovery.resync import Resync
from protect.zones.upkeep.clock import ZoneClocks
from protect.zones.upkeep.silence import SilenceWatch

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReportReactions:
    """Collaborators that react to the reports of a link."""

    registry: Registry
    lifetime: DaemonLifetime
    exits: WorkloadExits
    deaths: ZoneDeaths
    orphans: Orphans
    resync: Resync
    silence: SilenceWatch
    clocks: ZoneClocks


@dataclass(frozen=True, slots=True)
class ZoneLinks:
    """Makes links to the agents of zones."""

    toolstack: Toolstack
    factory: LinkFactory
    reactions: ReportReactions

    def new(self, runtime: ZoneRuntime) -> AgentLink:
        """Make a closed link to the agent in the zone's domain."""
        dial = functools.partial(self.toolstack.open_channel, runtime.zone.domain_id)
        return self.factory(runtime.id, dial, ZoneEvents(self.reactions, runtime))


class ZoneEvents:
    """Implements ``LinkEvents`` for one zone."""

    def __init__(self, reactions: ReportReactions, runtime: ZoneRuntime) -> None:
        self._to = reactions
        self._runtime = runtime
        self._tasks = reactions.lifetime.tasks

    async def connected(self, hello: AgentHello, new_boot: bool) -> None:
        """Bring the registries up to date; during a launch they are empty."""
        runtime = self._runtime
        if not runtime.running:
            return
        if not runtime.zone.boot_id:  # adopted by its mark, without a boot id
            await self._to.orphans.empty(runtime, hello)
        if runtime.zone.boot_id != hello.boot_id.hex():
            # A domain boots once.  Another agent has none of our workloads.
            log.error("another agent answers in the zone", extra=fields(zone=runtime.id))
            self._condemn(DeathKind.AGENT_REPLACED, "another agent answers in it")
            return
        await self._to.resync.resync(runtime)
        self._tasks.spawn(self._to.resync.finish_intents(runtime), f"finish in zone {runtime.id}")
        runtime.heard.set()
        self._to.clocks.begin(runtime)
        self._to.registry.zone_changed(runtime)

    def disconnected(self) -> None:
        """Tell watchers, and wait some time for the agent of a running zone."""
        runtime = self._runtime
        runtime.heard.clear()
        if runtime.running and not self._to.lifetime.stopping:
            seen = ZoneSeen(runtime.zone, connected=False, paused=runtime.paused)
            self._to.registry.hub.publish(seen)
            self._tasks.spawn(self._to.silence.wait(runtime), f"wait for the agent of {runtime.id}")

    def process_exited(self, exited: ProcessExited) -> None:
        self._to.exits.on_exit(self._runtime, exited)

    def violation(self, cause: str) -> None:
        """Kill a running zone after a violation: its processes are unknown from then on."""
        reason = f"its agent broke the channel's rules: {printable(cause, 200)}"
        log.warning("zone cut off", extra=fields(zone=self._runtime.id, reason=reason))
        self._condemn(DeathKind.RULES_BROKEN, reason)

    def _condemn(self, kind: DeathKind, cause: str) -> None:
        ending = self._to.deaths.condemn(self._runtime, kind, cause)
        self._tasks.spawn(ending, f"end zone {self._runtime.id}")
