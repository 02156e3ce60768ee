"""``protect zone top``: shows periodically the zones' use, by the hypervisor's own count."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from protectctl import daemons, find, selector, show
from protectctl.daemons import TIMEOUT_SECONDS
from protectctl.output import structured
from protectctl.usage.values import positive, seconds
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc

_HEADS = ("ZONE", "NAME", "CPU", "VCPUS", "MEMORY", "USED", "RECEIVED/S", "SENT/S")
_KIB = 1 << 10
_SORTS = ("cpu", "memory", "received", "sent", "name")


@dataclass(frozen=True, slots=True)
class ZoneUse:
    """A zone's use: CPU in percent of one CPU, bytes, and bytes a second."""

    zone: pb.Zone
    cpu: float
    vcpus: int
    memory: int
    used: int
    received: float
    sent: float


def add_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("ids", nargs="*", metavar="id", help="only these zones")
    text = "time between two readings (default: 2)"
    verb.add_argument("--interval", "-d", type=seconds, default=2.0, metavar="SECONDS", help=text)
    text = "number of readings; default: on a terminal until interrupted, otherwise 1"
    verb.add_argument("--count", "-n", type=positive, metavar="N", help=text)
    verb.add_argument("--sort", choices=_SORTS, default="cpu")


async def top(options: argparse.Namespace) -> None:
    """Show the zones' use after each reading; the first is shown ``--interval`` after the start."""
    is_live = sys.stdout.isatty() and options.output == "table"
    count = options.count or (None if is_live else 1)
    async with daemons.zones(options) as zones:
        listed = await daemons.zone_list(zones)
        wanted = [daemons.one_zone(listed, text) for text in options.ids]
        before = await _read(zones, wanted)
        with _view(is_live) as view:
            shown = 0
            while count is None or shown < count:
                await asyncio.sleep(options.interval)
                known = {zone.id: zone for zone in await daemons.zone_list(zones)}
                now = await _read(zones, [one for one in wanted if one in known])
                chosen = options.selector.select(selector.ZONE, list(known.values()))
                uses = compare(before, now, {zone.id: zone for zone in chosen})
                _show(options, uses, now, view)
                before, shown = now, shown + 1


class View(Protocol):
    """Place where readings are shown in order."""

    def show(self, title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None: ...


def _view(is_live: bool) -> AbstractContextManager[View]:
    if not is_live:
        return nullcontext(_Lines())
    from protectctl.terminal import LiveTable  # imports rich, a slow import

    return LiveTable()


class _Lines:
    """Prints each reading below the last."""

    def show(self, title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        show.table(heads, rows)
        sys.stdout.flush()


Rows = Mapping[str, pb.ZoneStatsRow]


async def _read(zones: protect_pb2_grpc.ZonesAsyncStub, wanted: Sequence[str]) -> Rows:
    answer = await zones.ZoneStats(pb.ZoneStatsRequest(ids=wanted), timeout=TIMEOUT_SECONDS)
    return {row.zone_id: row for row in answer.rows}


def compare(before: Rows, now: Rows, zones: Mapping[str, pb.Zone]) -> list[ZoneUse]:
    """The zones' use between two readings; the rates of a zone without an earlier reading are 0."""
    return [
        _use(zones[zone_id], before.get(zone_id, row), row)
        for zone_id, row in now.items()
        if zone_id in zones
    ]


def _use(zone: pb.Zone, before: pb.ZoneStatsRow, now: pb.ZoneStatsRow) -> ZoneUse:
    elapsed_ns = now.timestamp_ns - before.timestamp_ns

    def rate(spent: int) -> float:
        """The growth of a counter per nanosecond; 0 if the counter was reset."""
        return max(0, spent) / elapsed_ns if elapsed_ns > 0 else 0.0

    cpu = rate(now.host_cpu_usage_ns - before.host_cpu_usage_ns)
    if not now.host_cpu_usage_ns:
        cpu = rate(now.cpu_usage_ns - before.cpu_usage_ns)
    received, sent = (
        rate(
            sum(getattr(one, way) for one in now.interfaces)
            - sum(getattr(one, way) for one in before.interfaces)
        )
        for way in ("rx_bytes", "tx_bytes")
    )
    return ZoneUse(
        zone=zone,
        cpu=100 * cpu,
        vcpus=now.host_vcpus or zone.resources.vcpus,
        memory=now.host_memory_bytes or now.memory_total_bytes,
        used=now.memory_usage_bytes,
        received=received * 1e9,
        sent=sent * 1e9,
    )


def _show(options: argparse.Namespace, uses: Sequence[ZoneUse], now: Rows, view: View) -> None:
    rows = [now[use.zone.id] for use in uses]
    answer = pb.ZoneStatsResponse(rows=rows)
    if structured(options.output, answer, names=(row.zone_id for row in rows)):
        sys.stdout.flush()
        return
    keys = {
        "cpu": lambda use: -use.cpu,
        "memory": lambda use: -use.used,
        "received": lambda use: -use.received,
        "sent": lambda use: -use.sent,
        "name": lambda use: use.zone.name,
    }
    short = find.short([use.zone.id for use in uses])
    cells = [
        (short[use.zone.id], use.zone.name, f"{use.cpu:.1f}%", str(use.vcpus), show.mib(use.memory),
         show.mib(use.used), f"{use.received / _KIB:.0f} KiB", f"{use.sent / _KIB:.0f} KiB")
        for use in sorted(uses, key=keys[options.sort])
    ]  # fmt: skip
    cpu, used = sum(use.cpu for use in uses), sum(use.used for use in uses)
    title = f"{len(uses)} zones, CPU {cpu:.0f}%, memory in use {show.mib(used)}; Ctrl-C ends"
    view.show(title, _HEADS, cells)
