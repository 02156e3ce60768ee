"""The driver's own figures, in the registry of the process (``daemonkit.observe.metrics``).

Every label has one of a few values from our source; a claim's author cannot choose any.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from prometheus_client import Counter, Gauge, Histogram

from cluster.dra.model import ZoneMemory
from daemonkit.faults import Fault
from daemonkit.observe.metrics import REGISTRY, SECONDS

_UP = Gauge(
    "xenpod_dra_protectd_up",
    "1 while protectd answers; else the other gauges are its last word.",
    registry=REGISTRY,
)
_CLAIMS = Gauge("xenpod_dra_claims", "Reservations: of claims, and made by hand.", registry=REGISTRY)
_CAPACITY = Gauge("xenpod_dra_capacity_bytes", "Memory that zones can have in all.", registry=REGISTRY)
_RESERVED = Gauge("xenpod_dra_reserved_bytes", "Memory promised to zones and claims.", registry=REGISTRY)
_CLAIMED = Gauge("xenpod_dra_claimed_bytes", "The part of it that claims have.", registry=REGISTRY)
_FREE = Gauge("xenpod_dra_free_bytes", "Memory that is promised to nobody.", registry=REGISTRY)
_CALLS = Histogram(
    "xenpod_dra_call_seconds",
    "Calls of the kubelet, one for each claim.",
    ("call",),
    buckets=SECONDS,
    registry=REGISTRY,
)
_REQUESTS = Counter(
    "xenpod_dra_api_requests", "Requests to the API server.", ("operation",), registry=REGISTRY
)
_SLICE_WRITES = Counter(
    "xenpod_dra_slice_writes", "Slices that were created, replaced or removed.", registry=REGISTRY
)
_ERRORS = Counter(
    "xenpod_dra_errors", "What failed, by the kind of fault.", ("operation", "reason"), registry=REGISTRY
)

_WRITES = frozenset({"create slice", "write slice", "remove slice"})

for _call in ("prepare", "unprepare"):
    _CALLS.labels(_call)


def host(memory: ZoneMemory | None) -> None:
    """Take over protectd's present report; None: protectd is away."""
    _UP.set(memory is not None)
    if memory is not None:
        _CLAIMS.set(memory.claims)
        _CAPACITY.set(memory.total)
        _RESERVED.set(memory.reserved)
        _CLAIMED.set(memory.claimed)
        _FREE.set(memory.free)


@contextlib.contextmanager
def measured_call(name: str) -> Iterator[None]:
    """Measure a call of the kubelet in the block: "prepare" or "unprepare"."""
    begun = time.monotonic()
    try:
        with _failures(f"{name} claim"):
            yield
    finally:
        _CALLS.labels(name).observe(time.monotonic() - begun)


@contextlib.contextmanager
def request(operation: str) -> Iterator[None]:
    """Count a request to the API server; ``operation`` is a name from our code."""
    _REQUESTS.labels(operation).inc()
    with _failures(operation):
        yield
    if operation in _WRITES:
        _SLICE_WRITES.inc()


@contextlib.contextmanager
def _failures(operation: str) -> Iterator[None]:
    """Reasons are kinds of faults, or "bug"."""
    try:
        yield
    except Exception as error:
        reason = type(error).__name__.lower() if isinstance(error, Fault) else "bug"
        _ERRORS.labels(operation, reason).inc()
        raise
