"""Keeps the clocks of zones in step with the host's: reads clocks through the channel, and corrects them.

The host notes its time before and after each reading.  Half of the round trip bounds the error, even if the
zone is slow or paused.  The question to a paused zone stays open until the zone goes on; the reading is then
too uncertain, and another reading follows at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from daemonkit.faults import Exhausted, Refused, Unreachable, Unsupported
from daemonkit.logs import fields
from daemonkit.tasks import race
from protect.agent import queries
from protect.config import Timeouts
from protect.host.clockset import clock_set
from protect.model.toolstack import Toolstack
from protect.state.daemon_lifetime import DaemonLifetime
from protect.state.registry import Registry
from protect.state.runtime import ZoneRuntime

log = logging.getLogger(__name__)

_MS = 1_000_000
GOOD_NS = 1 * _MS
"""Largest error of a good reading; larger errors cause another reading."""
WORTH_NS = 1 * _MS
"""Largest difference that is left alone."""
STEP_NS = 20 * _MS
"""Larger differences are stepped: slewing would take longer than 40 s, at 500 parts in a million."""
READINGS = 8
"""Most readings of one round; the best reading counts."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Lead of the zone's clock before the host's, and the bound of the error, in ns."""

    offset_ns: int
    error_ns: int


@dataclass(frozen=True, slots=True)
class ZoneClocks:
    """Sets the clocks of zones by the host's clock."""

    registry: Registry
    toolstack: Toolstack
    lifetime: DaemonLifetime
    timeouts: Timeouts

    async def keep(self) -> None:
        """Check every zone's clock each ``timeouts.clock``, and at once after the host's clock is set."""
        if not self.toolstack.capabilities().own_clocks:
            return
        with clock_set() as changed:
            while True:
                zones = list(self.registry.zones.values())
                gap = self.timeouts.clock / max(1, len(zones))
                for number in range(max(1, len(zones))):
                    if await _within(changed, gap):
                        log.info("the host's clock has been set: setting those of zones")
                        for runtime in self.registry.zones.values():
                            self.begin(runtime)
                        break
                    if number < len(zones):
                        self.begin(zones[number])

    def begin(self, runtime: ZoneRuntime) -> None:
        """Check a running zone's clock in the background, or once more after a check under way."""
        if not self.toolstack.capabilities().own_clocks or runtime.clock.fixed or self.lifetime.stopping:
            return
        runtime.clock.again = True
        if not runtime.clock.busy and runtime.running and runtime.connected and runtime.client.serving:
            runtime.clock.busy = True
            self.lifetime.tasks.spawn(self._keep_one(runtime), f"clock of zone {runtime.id}")

    async def _keep_one(self, runtime: ZoneRuntime) -> None:
        try:
            # Nothing is awaited between this test and the end of "busy": no request for a check is lost.
            while runtime.clock.again:
                runtime.clock.again = False
                await race(_round(runtime), self.lifetime.stopping.wait())
        except (Unsupported, Refused) as fault:
            # An older agent cannot set the clock: leave the clock alone.  An ended zone proves nothing.
            runtime.clock.fixed = not runtime.end
            log.info("a zone's clock is left alone: %s", fault, extra=fields(zone=runtime.id))
        except (Unreachable, Exhausted) as fault:
            log.debug("a zone's clock is not known: %s", fault, extra=fields(zone=runtime.id))
        finally:
            runtime.clock.busy = False


async def _within(changed: asyncio.Event, seconds: float) -> bool:
    """Whether the event comes within ``seconds``.  Clears the event."""
    try:
        async with asyncio.timeout(seconds):
            await changed.wait()
    except TimeoutError:
        return False
    changed.clear()
    return True


async def _round(runtime: ZoneRuntime) -> None:
    """Read the clock, correct it, and after a step check the result."""
    reading = await _measure(runtime)
    if abs(reading.offset_ns) <= max(reading.error_ns, WORTH_NS):
        return
    step = abs(reading.offset_ns) > STEP_NS
    await _ask(runtime, -reading.offset_ns, step=step)
    if step:
        after = await _measure(runtime)
        log.info(
            "a zone's clock was set",
            extra=fields(
                zone=runtime.id, ahead_ms=reading.offset_ns / _MS, afterwards_ms=after.offset_ns / _MS
            ),
        )
        if abs(after.offset_ns) > STEP_NS + after.error_ns:
            # Either the host's clock was set, and another check follows, or the zone's clock cannot be set.
            log.warning(
                "a zone's clock is wrong after it was set",
                extra=fields(zone=runtime.id, ahead_ms=after.offset_ns / _MS),
            )


async def _measure(runtime: ZoneRuntime) -> Reading:
    """The best reading; repeats until a good reading, at most READINGS times."""
    best = await _ask(runtime)
    for _ in range(READINGS - 1):
        if best.error_ns <= GOOD_NS:
            break
        best = min(best, await _ask(runtime), key=lambda reading: reading.error_ns)
    return best


async def _ask(runtime: ZoneRuntime, add_ns: int = 0, *, step: bool = False) -> Reading:
    """Correct and read the zone's clock.  The only deadline is the end of the connection."""
    before = time.monotonic_ns()
    untrusted_ns = await queries.clock(runtime.client, add_ns, step=step)
    # The monotonic clock gives durations: time_ns may be set in between.
    after, now = time.monotonic_ns(), time.time_ns()
    half = (after - before) // 2
    return Reading(untrusted_ns - (now - half), half)
