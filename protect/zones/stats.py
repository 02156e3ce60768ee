"""Statistics of zones and workloads: asks all zones at once, and leaves out silent zones."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Sequence
from functools import partial

from daemonkit.faults import Fault
from daemonkit.logs import fields
from protect.agent import queries
from protect.config import Timeouts
from protect.model.statistics import StatsKind, WorkloadStats, ZoneStats
from protect.model.toolstack import DomainInfo, Toolstack
from protect.model.workload import WorkloadState
from protect.state.registry import Registry
from protect.state.runtime import StatsQuery, WorkloadRuntime, ZoneRuntime

log = logging.getLogger(__name__)

QUIET_SECONDS = 0.5
"""Seconds without any answer until missing answers are given up."""
KEPT_SECONDS = 10.0
"""Seconds for which the last answer of a zone replaces a late answer."""


async def gather(
    timeouts: Timeouts, zones: Iterable[ZoneRuntime], kind: StatsKind = StatsKind.ZONE
) -> dict[str, ZoneStats]:
    """Ask all zones at once; the answers by zone id.  Zones without an answer are left out.

    While answers arrive, the wait lasts at most ``timeouts.stats``.  Zones with an overdue answer cause no
    wait.
    """
    able = [zone for zone in zones if zone.connected and zone.client.serving and not zone.end]
    asked = [(zone, query) for zone in able if (query := _ask(zone, kind))]
    await _some([query for _, query in asked if not query.overdue], timeouts.stats)
    answers = ((zone.id, _answer(zone, query, kind)) for zone, query in asked)
    return {zone_id: stats for zone_id, stats in answers if stats}


async def counted(registry: Registry, toolstack: Toolstack, zone_ids: Iterable[str]) -> dict[str, DomainInfo]:
    """Figures of the hypervisor by zone id, without zones whose domain is gone."""
    domains = {domain.uuid: domain for domain in await toolstack.list()}
    runtimes = [registry.zones[one] for one in zone_ids if one in registry.zones]
    return {one.id: domains[one.zone.uuid] for one in runtimes if one.zone.uuid in domains}


async def of_workloads(
    registry: Registry, timeouts: Timeouts, ids: Sequence[str]
) -> list[tuple[str, WorkloadStats]]:
    """Statistics of the given or all workloads, with their zones' ids; without ended workloads."""
    named = [registry.workload("stats", one) for one in dict.fromkeys(ids)]
    wanted = {runtime.id: runtime for runtime in named or registry.workloads.values() if _lives(runtime)}
    zones = {runtime.zone.id: runtime.zone for runtime in wanted.values()}
    answers = await gather(timeouts, zones.values(), StatsKind.WORKLOADS)
    return [
        (zone_id, row) for zone_id, answer in answers.items() for row in answer.workloads if row.id in wanted
    ]


def _lives(runtime: WorkloadRuntime) -> bool:
    return runtime.workload.state in (WorkloadState.CREATED, WorkloadState.RUNNING)


def _ask(zone: ZoneRuntime, kind: StatsKind) -> StatsQuery | None:
    """Join the open query, or send a new query; None: the zone cannot be asked."""
    query = zone.stats.open.get(kind)
    if query is None:
        try:
            answer = queries.stats(zone.agent, kind, zone.workloads.__contains__)
        except Fault as fault:
            _log_failure(zone, fault)
            return None
        query = zone.stats.open[kind] = StatsQuery(answer)
        answer.add_done_callback(partial(_keep, zone, kind))
    return query


def _keep(zone: ZoneRuntime, kind: StatsKind, answer: asyncio.Future[ZoneStats]) -> None:
    del zone.stats.open[kind]
    if fault := answer.exception():
        _log_failure(zone, fault)
    else:
        zone.stats.last[kind] = (asyncio.get_running_loop().time(), answer.result())


def _log_failure(zone: ZoneRuntime, fault: BaseException) -> None:
    log.warning("zone gives no stats: %s", fault, extra=fields(zone=zone.id))


async def _some(asked: list[StatsQuery], longest: float) -> None:
    """Wait for all answers, at most ``QUIET_SECONDS`` without any, or ``longest`` for a single query."""
    pending = {query.answer for query in asked if not query.answer.done()}
    if not pending:
        return
    loop = asyncio.get_running_loop()
    all_done = loop.create_future()
    begun = latest = loop.time()

    def answered(answer: asyncio.Future[ZoneStats]) -> None:
        nonlocal latest
        latest = loop.time()
        pending.discard(answer)
        if not pending and not all_done.done():
            all_done.set_result(None)

    quiet = QUIET_SECONDS if len(pending) > 1 else longest
    waited_for = list(pending)
    for answer in waited_for:
        answer.add_done_callback(answered)
    try:
        while not all_done.done() and (left := min(latest + quiet, begun + longest) - loop.time()) > 0:
            await asyncio.wait([all_done], timeout=left)
    finally:
        for answer in waited_for:
            answer.remove_done_callback(answered)


def _answer(zone: ZoneRuntime, query: StatsQuery, kind: StatsKind) -> ZoneStats | None:
    if query.answer.done():
        return None if query.answer.exception() else query.answer.result()
    if not query.overdue:
        log.warning("zone is late with its stats", extra=fields(zone=zone.id))
        query.overdue = True
    when, stats = zone.stats.last.get(kind, (-math.inf, None))
    return stats if asyncio.get_running_loop().time() - when <= KEPT_SECONDS else None
