"""Current figures of the host and its zones, for Prometheus.

Callers choose only the labels of zones: at most ``limits.zones`` labels, and each goes with its zone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from protect.config import ZoneLimits
from protect.model.ports import ScratchDisks
from protect.model.toolstack import DomainInfo, Toolstack
from protect.model.workload import WorkloadState
from protect.model.zone import ZoneState
from protect.state.ledger import Ledger
from protect.state.registry import Registry
from protect.zones.capacity.host_memory import MemorySampler
from protect.zones.recovery.orphans import unknown

_ZONE = ("zone", "name")


@dataclass(frozen=True, slots=True)
class Figures:
    """Reads the figures of the host and its zones."""

    registry: Registry
    ledger: Ledger
    toolstack: Toolstack
    sampler: MemorySampler
    scratch: ScratchDisks
    limits: ZoneLimits

    async def read(self) -> list[Metric]:
        """All figures of one moment.  Two calls to the hypervisor, for any number of zones."""
        await self.sampler.refresh()
        domains = await self.toolstack.list()
        return [
            *_ledger(self.ledger),
            *_counts(self.registry, self.limits, len(unknown(self.registry, domains))),
            *_zones(self.registry, {domain.uuid.hex: domain for domain in domains}),
            await _scratch(self.scratch),
        ]


def _ledger(ledger: Ledger) -> Iterable[Metric]:
    now = ledger.capacity()
    yield _gauges(
        "xenpod_ledger_bytes",
        "Memory of zones: total is promised and free; reservations is part of promised.",
        "kind",
        {
            "total": now.total,
            "promised": now.promised,
            "free": now.free,
            "reservations": now.reservations,
            "foreign": now.foreign,
            "dom0": now.dom0,
            "sharing": now.sharing,
        },
    )


def _counts(registry: Registry, limits: ZoneLimits, orphans: int) -> Iterable[Metric]:
    zones = list(registry.zones.values())
    yield _gauges(
        "xenpod_zones", "Zones, by their state.", "state", _by(ZoneState, (z.zone.state for z in zones))
    )
    workloads = (one.workload.state for one in registry.workloads.values())
    yield _gauges("xenpod_workloads", "Workloads, by their state.", "state", _by(WorkloadState, workloads))
    silent = sum(zone.zone.state is ZoneState.RUNNING and not zone.connected for zone in zones)
    limit = limits.zones
    for name, text, value in (
        ("xenpod_zones_limit", "Most zones that may be (limits.zones).", limit),
        ("xenpod_zones_silent", "Zones that run and whose agents are not reached.", silent),
        ("xenpod_execs", "Execs that run in zones.", sum(len(zone.execs) for zone in zones)),
        ("xenpod_forwards", "Connections that are forwarded into zones.", sum(z.dialling for z in zones)),
        ("xenpod_reservations", "Reservations of memory.", len(registry.reservations)),
        ("xenpod_unknown_domains", "Domains without a record.", orphans),
        ("xenpod_host_notices", "Things of this host for the operator to see to.", len(registry.notices)),
    ):
        yield GaugeMetricFamily(name, text, value)


def _zones(registry: Registry, domains: dict[str, DomainInfo]) -> Iterable[Metric]:
    """The hypervisor's figures of each zone with a domain."""
    seconds = CounterMetricFamily(
        "xenpod_zone_cpu_seconds", "CPU time, as the hypervisor counts.", labels=_ZONE
    )
    memory = GaugeMetricFamily("xenpod_zone_memory_bytes", "Memory that the domain holds.", labels=_ZONE)
    promised = GaugeMetricFamily("xenpod_zone_memory_limit_bytes", "Memory of the zone's size.", labels=_ZONE)
    cpus = GaugeMetricFamily("xenpod_zone_vcpus", "Virtual CPUs that are on line.", labels=_ZONE)
    for runtime in registry.zones.values():
        domain = domains.get(runtime.zone.uuid.hex)
        if domain is None:
            continue
        labels = (runtime.id, runtime.zone.spec.name)
        seconds.add_metric(labels, domain.cpu_time_ns / 1e9)
        memory.add_metric(labels, domain.held_bytes)
        promised.add_metric(labels, runtime.zone.spec.memory_bytes)
        cpus.add_metric(labels, domain.vcpus_online)
    return seconds, memory, promised, cpus


async def _scratch(scratch: ScratchDisks) -> Metric:
    capacity = await asyncio.to_thread(scratch.capacity)
    values = {
        "promised": capacity.promised_bytes,
        "written": capacity.written_bytes,
        "free": capacity.free_bytes,
    }
    return _gauges(
        "xenpod_scratch_bytes", "Disk of zones' scratch disks; free is what is left.", "kind", values
    )


def _by(states: type[Enum], seen: Iterable[Enum]) -> dict[str, int]:
    """The number of objects in each state, including 0."""
    found = Counter(seen)
    return {str(state.value): found[state] for state in states}


def _gauges(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=(label,))
    for value, figure in values.items():
        family.add_metric((value,), figure)
    return family
