"""The metrics of every daemon, and the registry of all its metrics.

Labels have few values, and callers can add none: methods of the server, status codes, kinds of faults, names
in the source.  If a label names a zone, its values go with the zone. Names follow conventions:
``grpc_server_*`` as in go-grpc-prometheus, ``process_*`` as in all clients of Prometheus.
"""

from __future__ import annotations

import asyncio
from importlib.metadata import version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

REGISTRY = CollectorRegistry()
"""Of this daemon; the library's default registry is unused, because it has further collectors."""

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Bounds of histograms for durations from milliseconds to a minute."""

CALLS = Counter(
    "grpc_server_handled",
    "Calls that ended, by their status.",
    ("grpc_service", "grpc_method", "grpc_code"),
    registry=REGISTRY,
)
CALL_SECONDS = Histogram(
    "grpc_server_handling_seconds",
    "How long calls with one reply took.",
    ("grpc_service", "grpc_method"),
    buckets=SECONDS,
    registry=REGISTRY,
)
CALLS_OPEN = Gauge("xenpod_calls_open", "Calls under way, streams too.", registry=REGISTRY)
ERRORS = Counter("xenpod_errors", "Calls that failed, by the kind of fault.", ("reason",), registry=REGISTRY)
LAG = Histogram(
    "xenpod_event_loop_lag_seconds",
    "How much later than asked for the event loop got to a timer.",
    buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0),
    registry=REGISTRY,
)
UNREAD = Counter("xenpod_figures_unread", "Figures that a scrape had to leave out.", registry=REGISTRY)
_BUILD = Gauge("xenpod_build_info", "1; the version is a label.", ("daemon", "version"), registry=REGISTRY)

_LAG_PERIOD_SECONDS = 0.5

# Creation times would be half of the series.
disable_created_metrics()  # type: ignore[no-untyped-call]
ProcessCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)


def name_daemon(daemon: str) -> None:
    """Show the daemon's name and version."""
    _BUILD.labels(daemon, version("xenpod")).set(1)


async def watch_loop() -> None:
    """Measure how late the event loop is, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _LAG_PERIOD_SECONDS
        await asyncio.sleep(_LAG_PERIOD_SECONDS)
        LAG.observe(max(0.0, loop.time() - due))
