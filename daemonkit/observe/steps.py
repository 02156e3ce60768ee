"""Steps of operations, for example the boot of a zone.  Each is timed for Prometheus, and is a trace span.

Usage: ``with step("zone.boot", zone=spec.id): ...``.  Each name has its own time series, and must therefore
be a literal, or made of names in a contract.  Unbounded values are attributes of the span alone.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractContextManager
from types import TracebackType

from prometheus_client import Counter, Histogram

from daemonkit.observe import metrics, traces

SECONDS = Histogram(
    "xenpod_step_seconds",
    "How long steps of operations took, those that failed too.",
    ("step",),
    buckets=metrics.SECONDS,
    registry=metrics.REGISTRY,
)
FAILURES = Counter(
    "xenpod_step_failures", "Steps of operations that failed.", ("step",), registry=metrics.REGISTRY
)


class step(AbstractContextManager[None]):  # noqa: N801  # used as a function is
    """Time a step, and trace it if traces are on."""

    __slots__ = ("_begun", "_name", "_span")

    def __init__(self, name: str, **attributes: str) -> None:
        self._name = name
        self._span = traces.span(name, attributes)
        self._begun = 0.0

    def __enter__(self) -> None:
        self._begun = time.monotonic()
        self._span.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._span.__exit__(kind, error, where)
        SECONDS.labels(self._name).observe(time.monotonic() - self._begun)
        if error is not None and not isinstance(error, asyncio.CancelledError):
            FAILURES.labels(self._name).inc()
