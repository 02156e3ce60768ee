"""Current figures of the host and its zones, for Prometheus.

Callers choose only the labels of zones: at most ``limits.zones`` labels, and each goes with its zone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from enum import Enum

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from protect.model.toolstack import DomainInfo
from protect.model.workload import WorkloadState
from protect.model.zone import ZoneState
from protect.state.manager import ZoneManager
from protect.zones.capacity import host_memory
from protect.zones.recovery.strangers import unknown

_ZONE = ("zone", "name")


async def figures(manager: ZoneManager) -> list[Metric]:
    """All figures of one moment.  Two calls to the hypervisor, for any number of zones."""
    await host_memory.refresh(manager)
    domains = await manager.toolstack.list()
    return [
        *_ledger(manager),
        *_counts(manager, len(unknown(manager, domains))),
        *_zones(manager, {domain.uuid.hex: domain for domain in domains}),
        await _scratch(manager),
    ]


def _ledger(manager: ZoneManager) -> Iterable[Metric]:
    now = manager.ledger.capacity()
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


def _counts(manager: ZoneManager, strangers: int) -> Iterable[Metric]:
    zones = list(manager.zones.values())
    yield _gauges(
        "xenpod_zones", "Zones, by their state.", "state", _by(ZoneState, (z.zone.state for z in zones))
    )
    workloads = (one.workload.state for one in manager.workloads.values())
    yield _gauges("xenpod_workloads", "Workloads, by their state.", "state", _by(WorkloadState, workloads))
    silent = sum(zone.zone.state is ZoneState.RUNNING and not zone.connected for zone in zones)
    limit = manager.config.limits.zones
    for name, text, value in (
        ("xenpod_zones_limit", "Most zones that may be (limits.zones).", limit),
        ("xenpod_zones_silent", "Zones that run and whose agents are not reached.", silent),
        ("xenpod_execs", "Execs that run in zones.", sum(len(zone.execs) for zone in zones)),
        ("xenpod_forwards", "Connections that are forwarded into zones.", sum(z.dialling for z in zones)),
        ("xenpod_reservations", "Reservations of memory.", len(manager.reservations)),
        ("xenpod_unknown_domains", "Domains without a record.", strangers),
        ("xenpod_host_notices", "Things of this host for the operator to see to.", len(manager.preflight)),
    ):
        yield GaugeMetricFamily(name, text, value)


def _zones(manager: ZoneManager, domains: dict[str, DomainInfo]) -> Iterable[Metric]:
    """The hypervisor's figures of each zone with a domain."""
    seconds = CounterMetricFamily(
        "xenpod_zone_cpu_seconds", "CPU time, as the hypervisor counts.", labels=_ZONE
    )
    memory = GaugeMetricFamily("xenpod_zone_memory_bytes", "Memory that the domain holds.", labels=_ZONE)
    promised = GaugeMetricFamily("xenpod_zone_memory_limit_bytes", "Memory of the zone's size.", labels=_ZONE)
    cpus = GaugeMetricFamily("xenpod_zone_vcpus", "Virtual CPUs that are on line.", labels=_ZONE)
    for runtime in manager.zones.values():
        domain = domains.get(runtime.zone.uuid.hex)
        if domain is None:
            continue
        labels = (runtime.id, runtime.zone.spec.name)
        seconds.add_metric(labels, domain.cpu_time_ns / 1e9)
        memory.add_metric(labels, domain.held_bytes)
        promised.add_metric(labels, runtime.zone.spec.memory_bytes)
        cpus.add_metric(labels, domain.vcpus_online)
    return seconds, memory, promised, cpus


async def _scratch(manager: ZoneManager) -> Metric:
    capacity = await asyncio.to_thread(manager.scratch.capacity)
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
