"""Statistics of zones: one question for each, all at once; a silent zone is not waited for."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable
from typing import TypeVar

from daemonkit.faults import Fault
from daemonkit.logs import fields
from protect.channel.messages import printable
from protect.state.node import Node, ZoneRuntime, now_ns
from protect.zones.answers import Kind, Question
from xenpod_proto.channel.v1 import channel_pb2

T = TypeVar("T", channel_pb2.ContainerStats, channel_pb2.ZoneStats)

log = logging.getLogger(__name__)

PATIENCE = 0.5
"""Seconds without any answer after which those that are still missing are not waited for."""
KEPT = 10.0
"""Seconds for which the last answer stands in for one that is late."""
_OPEN = 60.0
"""Seconds for which a question stays open, so that a silent zone has one and not many."""
_SKEW = 60 * 10**9
_INTERFACES = 32


async def gather(
    node: Node, zones: Iterable[ZoneRuntime], kind: Kind = Kind.ZONE
) -> dict[str, channel_pb2.Stats]:
    """By zone id: what each says, with every number in range; those without an answer are left out.

    While answers come it goes on for as long as ``timeouts.stats``.  Nobody waits for a zone that is late
    already.
    """
    asked = {zone.id: zone for zone in zones if zone.connected and not zone.end}
    questions = {zone.id: _ask(zone, kind) for zone in asked.values()}
    waited = [question for question in questions.values() if not question.overdue]
    await _some(waited, node.config.timeouts.stats)
    found: dict[str, channel_pb2.Stats] = {}
    for zone_id, question in questions.items():
        if stats := _answer(asked[zone_id], question, kind):
            found[zone_id] = stats
    return found


def _ask(zone: ZoneRuntime, kind: Kind) -> Question:
    """The question under way, or a new one."""
    question = zone.stats.open.get(kind)
    if question is None:
        task = asyncio.get_running_loop().create_task(_asked(zone, kind), name=f"stats {zone.id}")
        question = zone.stats.open[kind] = Question(task)
        task.add_done_callback(lambda _: zone.stats.open.pop(kind, None))
    return question


async def _asked(zone: ZoneRuntime, kind: Kind) -> channel_pb2.Stats | None:
    request = channel_pb2.Request(
        get_stats=channel_pb2.GetStats(details=kind is Kind.DETAILS, containers_only=kind is Kind.WORKLOADS)
    )
    try:
        link = await zone.agent()
        reply = await link.call(request, _OPEN)
    except Fault as fault:
        log.warning("zone gives no stats: %s", fault, extra=fields(zone=zone.id))
        return None
    stats = _checked(zone, reply.stats)
    zone.stats.last[kind] = (asyncio.get_running_loop().time(), stats)
    return stats


async def _some(questions: list[Question], longest: float) -> None:
    """Until all are answered, or none was for ``PATIENCE``; a single one may take ``longest``."""
    pending = {question.task for question in questions if not question.task.done()}
    if not pending:
        return
    loop = asyncio.get_running_loop()
    all_done = loop.create_future()
    begun = latest = loop.time()

    def answered(task: asyncio.Task[channel_pb2.Stats | None]) -> None:
        nonlocal latest
        latest = loop.time()
        pending.discard(task)
        if not pending and not all_done.done():
            all_done.set_result(None)

    patience = PATIENCE if len(pending) > 1 else longest
    waited_for = list(pending)
    for task in waited_for:
        task.add_done_callback(answered)
    try:
        while not all_done.done() and (left := min(latest + patience, begun + longest) - loop.time()) > 0:
            await asyncio.wait([all_done], timeout=left)
    finally:
        for task in waited_for:
            task.remove_done_callback(answered)


def _answer(zone: ZoneRuntime, question: Question, kind: Kind) -> channel_pb2.Stats | None:
    if question.task.done():
        return question.task.result()
    if not question.overdue:
        log.warning("zone is late with its stats", extra=fields(zone=zone.id))
        question.overdue = True
    when, stats = zone.stats.last.get(kind, (-math.inf, None))
    return stats if asyncio.get_running_loop().time() - when <= KEPT else None


def _checked(zone: ZoneRuntime, untrusted: channel_pb2.Stats) -> channel_pb2.Stats:
    """The same message without workloads that the zone does not have, names that are none, impossible times
    and averages."""
    rows: dict[str, channel_pb2.ContainerStats] = {}
    for row in untrusted.containers:
        if row.id in zone.workloads and row.id not in rows:
            rows[row.id] = _plausible(row)
    checked = channel_pb2.Stats(containers=rows.values(), zone=_plausible(untrusted.zone))
    interfaces = [one for one in untrusted.zone.interfaces[:_INTERFACES] if _named(one.name)]
    del checked.zone.interfaces[:]
    checked.zone.interfaces.extend(interfaces)
    return checked


def _named(untrusted: str) -> bool:
    return 0 < len(untrusted) <= 15 and untrusted.isascii() and printable(untrusted, 15) == untrusted


def _plausible(untrusted: T) -> T:
    now = now_ns()
    if abs(untrusted.timestamp_ns - now) > _SKEW:
        untrusted.timestamp_ns = now
    if not _percent(untrusted.cpu_pressure):
        untrusted.ClearField("cpu_pressure")
    if not _percent(untrusted.memory_pressure):
        untrusted.ClearField("memory_pressure")
    if not _percent(untrusted.io_pressure):
        untrusted.ClearField("io_pressure")
    return untrusted


def _percent(untrusted: channel_pb2.Pressure) -> bool:
    averages = (
        untrusted.some_avg10,
        untrusted.some_avg60,
        untrusted.some_avg300,
        untrusted.full_avg10,
        untrusted.full_avg60,
        untrusted.full_avg300,
    )
    return all(0.0 <= value <= 100.0 for value in averages)  # false for NaN
