"""Keeps the clocks of zones with the host's: reads them through the channel, and corrects what is wrong.

A reading is bracketed by the host's time before and after it, so half of the round trip bounds its error,
whatever the zone or a pause of it adds.  A question stays open as long as a zone is paused: its answer
comes when the zone goes on, has a useless bracket, and the next one is asked at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from daemonkit.faults import Exhausted, Refused, Unreachable, Unsupported
from daemonkit.logs import fields
from daemonkit.tasks import race
from protect.agent import questions
from protect.host.clockset import clock_set
from protect.state.manager import ZoneManager
from protect.state.runtime import ZoneRuntime

log = logging.getLogger(__name__)

_MS = 1_000_000
GOOD_NS = 1 * _MS
"""A reading with no larger error is not repeated."""
WORTH_NS = 1 * _MS
"""A smaller difference is left alone."""
STEP_NS = 20 * _MS
"""A larger one is corrected at once: slewing it takes longer than 40 s, at 500 parts in a million."""
READINGS = 8
"""Most readings of one round, of which the best counts."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the zone's clock is ahead of the host's, and by how much that may be wrong, in ns."""

    offset_ns: int
    error_ns: int


async def keep(manager: ZoneManager) -> None:
    """Hold every zone's clock against the host's now and then, and at once when the host's is set."""
    if not manager.toolstack.capabilities().own_clocks:
        return
    with clock_set() as changed:
        while True:
            zones = list(manager.zones.values())
            gap = manager.config.timeouts.clock / max(1, len(zones))
            for number in range(max(1, len(zones))):
                if await _within(changed, gap):
                    log.info("the host's clock has been set: setting those of zones")
                    for runtime in manager.zones.values():
                        begin(manager, runtime)
                    break
                if number < len(zones):
                    begin(manager, zones[number])


async def _within(changed: asyncio.Event, seconds: float) -> bool:
    """Whether the event comes within this time; it is cleared."""
    try:
        async with asyncio.timeout(seconds):
            await changed.wait()
    except TimeoutError:
        return False
    changed.clear()
    return True


def begin(manager: ZoneManager, runtime: ZoneRuntime) -> None:
    """Hold a running zone's clock against the host's, in the background; again, if that is under way."""
    if not manager.toolstack.capabilities().own_clocks or runtime.clock.fixed or manager.stopping:
        return
    runtime.clock.again = True
    if not runtime.clock.busy and runtime.running and runtime.connected and runtime.client.serving:
        runtime.clock.busy = True
        manager.tasks.spawn(_keep_one(manager, runtime), f"clock of zone {runtime.id}")


async def _keep_one(manager: ZoneManager, runtime: ZoneRuntime) -> None:
    try:
        # Nothing is awaited between this question and the end of "busy", so no word of a change is lost.
        while runtime.clock.again:
            runtime.clock.again = False
            await race(_round(runtime), manager.stopping.wait())
    except (Unsupported, Refused) as fault:
        # An older agent, or the zone has ended, which its next agent would not have.
        runtime.clock.fixed = not runtime.end
        log.info("a zone's clock is left alone: %s", fault, extra=fields(zone=runtime.id))
    except (Unreachable, Exhausted) as fault:
        log.debug("a zone's clock is not known: %s", fault, extra=fields(zone=runtime.id))
    finally:
        runtime.clock.busy = False


async def _round(runtime: ZoneRuntime) -> None:
    """Read the clock, correct it, and after a step see that it is right."""
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
            # The host's clock has been set meanwhile, which somebody tells, or the zone's cannot be.
            log.warning(
                "a zone's clock is wrong after it was set",
                extra=fields(zone=runtime.id, ahead_ms=after.offset_ns / _MS),
            )


async def _measure(runtime: ZoneRuntime) -> Reading:
    """The best of some readings, which are repeated until one is good."""
    best = await _ask(runtime)
    for _ in range(READINGS - 1):
        if best.error_ns <= GOOD_NS:
            break
        best = min(best, await _ask(runtime), key=lambda reading: reading.error_ns)
    return best


async def _ask(runtime: ZoneRuntime, add_ns: int = 0, *, step: bool = False) -> Reading:
    """Correct the zone's clock, and read it.  There is no deadline but the connection's end."""
    before = time.monotonic_ns()
    untrusted_ns = await questions.clock(runtime.client, add_ns, step=step)
    # Of the host's two clocks only this one may be set meanwhile.
    after, now = time.monotonic_ns(), time.time_ns()
    half = (after - before) // 2
    return Reading(untrusted_ns - (now - half), half)
