"""Statistics of zones and workloads: asks all zones at once, and leaves out those that do not answer."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Sequence

from daemonkit.faults import Fault
from daemonkit.logs import fields
from protect.model.statistics import StatsKind, WorkloadStats, ZoneStats
from protect.model.workload import WorkloadState
from protect.state.manager import ZoneManager
from protect.state.runtime import StatsQuestion, WorkloadRuntime, ZoneRuntime

log = logging.getLogger(__name__)

QUIET_TIMEOUT = 0.5
"""Seconds without any answer after which the missing ones are not waited for."""
KEPT = 10.0
"""Seconds for which the last answer of a zone is used if the next one is late."""


async def gather(
    manager: ZoneManager, zones: Iterable[ZoneRuntime], kind: StatsKind = StatsKind.ZONE
) -> dict[str, ZoneStats]:
    """Ask all zones at once; the answers by zone id.  Zones without an answer are left out.

    While answers come it goes on for as long as ``timeouts.stats``.  Nobody waits for a zone that is late
    already.
    """
    asked = {zone.id: zone for zone in zones if zone.connected and not zone.end}
    questions = {zone.id: _ask(zone, kind) for zone in asked.values()}
    waited = [question for question in questions.values() if not question.overdue]
    await _some(waited, manager.config.timeouts.stats)
    found: dict[str, ZoneStats] = {}
    for zone_id, question in questions.items():
        if stats := _answer(asked[zone_id], question, kind):
            found[zone_id] = stats
    return found


async def of_workloads(manager: ZoneManager, ids: Sequence[str]) -> list[tuple[str, WorkloadStats]]:
    """Statistics of the given workloads, or of all, with their zones' ids; ended ones have none."""
    named = [manager.workload("stats", one) for one in dict.fromkeys(ids)]
    wanted = {runtime.id: runtime for runtime in named or manager.workloads.values() if _lives(runtime)}
    zones = {runtime.zone.id: runtime.zone for runtime in wanted.values()}
    answers = await gather(manager, zones.values(), StatsKind.WORKLOADS)
    return [
        (zone_id, row) for zone_id, answer in answers.items() for row in answer.workloads if row.id in wanted
    ]


def _lives(runtime: WorkloadRuntime) -> bool:
    return runtime.workload.state in (WorkloadState.CREATED, WorkloadState.RUNNING)


def _ask(zone: ZoneRuntime, kind: StatsKind) -> StatsQuestion:
    """Join the call that is under way, or begin a new one."""
    question = zone.stats.open.get(kind)
    if question is None:
        task = asyncio.get_running_loop().create_task(_asked(zone, kind), name=f"stats {zone.id}")
        question = zone.stats.open[kind] = StatsQuestion(task)
        task.add_done_callback(lambda _: zone.stats.open.pop(kind, None))
    return question


async def _asked(zone: ZoneRuntime, kind: StatsKind) -> ZoneStats | None:
    try:
        stats = await zone.agent.stats(kind, zone.workloads.__contains__)
    except Fault as fault:
        log.warning("zone gives no stats: %s", fault, extra=fields(zone=zone.id))
        return None
    zone.stats.last[kind] = (asyncio.get_running_loop().time(), stats)
    return stats


async def _some(questions: list[StatsQuestion], longest: float) -> None:
    """Wait until all are answered, or none was for ``QUIET_TIMEOUT``; a single one may take ``longest``."""
    pending = {question.task for question in questions if not question.task.done()}
    if not pending:
        return
    loop = asyncio.get_running_loop()
    all_done = loop.create_future()
    begun = latest = loop.time()

    def answered(task: asyncio.Task[ZoneStats | None]) -> None:
        nonlocal latest
        latest = loop.time()
        pending.discard(task)
        if not pending and not all_done.done():
            all_done.set_result(None)

    quiet = QUIET_TIMEOUT if len(pending) > 1 else longest
    waited_for = list(pending)
    for task in waited_for:
        task.add_done_callback(answered)
    try:
        while not all_done.done() and (left := min(latest + quiet, begun + longest) - loop.time()) > 0:
            await asyncio.wait([all_done], timeout=left)
    finally:
        for task in waited_for:
            task.remove_done_callback(answered)


def _answer(zone: ZoneRuntime, question: StatsQuestion, kind: StatsKind) -> ZoneStats | None:
    if question.task.done():
        return question.task.result()
    if not question.overdue:
        log.warning("zone is late with its stats", extra=fields(zone=zone.id))
        question.overdue = True
    when, stats = zone.stats.last.get(kind, (-math.inf, None))
    return stats if asyncio.get_running_loop().time() - when <= KEPT else None
