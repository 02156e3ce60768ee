"""Watches the calls of a gRPC server: counts, times and traces them."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any

import grpc.aio

from daemonkit.observe import metrics, traces


class ObservedMethod:
    """One RPC of a server."""

    def __init__(self, full_name: str, *, timed: bool) -> None:
        """``full_name`` as gRPC has it: ``/runtime.v1.RuntimeService/Version``.

        ``timed``: whether the time says something: that of a stream is up to its client.
        """
        self.full_name = full_name
        service, _, rpc = full_name.strip("/").rpartition("/")
        self.name = f"{service.rpartition('.')[2]}.{rpc}"
        """Short, for people: ``RuntimeService.Version``."""
        self.labels = (service, rpc)
        self.seconds = metrics.CALL_SECONDS.labels(*self.labels) if timed else None

    def begin(self) -> ObservedCall:
        """A call begins; the caller says how it ends."""
        return ObservedCall(self)


class ObservedCall:
    """One call under way."""

    __slots__ = ("_ended", "begun", "method")

    def __init__(self, method: ObservedMethod) -> None:
        self.method = method
        self.begun = time.monotonic()
        self._ended = False
        metrics.CALLS_OPEN.inc()

    def span(self, context: grpc.aio.ServicerContext[Any, Any]) -> AbstractContextManager[object]:
        """What the call does belongs into this block, of its trace."""
        metadata: traces.Metadata | None = context.invocation_metadata()
        return traces.serving(self.method.full_name, metadata)

    def ended(self, code: str, error: BaseException | None = None) -> None:
        """The call has ended with a status, or a word for an end without one.  May be repeated."""
        if self._ended:
            return
        self._ended = True
        metrics.CALLS_OPEN.dec()
        metrics.CALLS.labels(*self.method.labels, code).inc()
        if error is not None:
            metrics.ERRORS.labels(type(error).__name__).inc()
        if self.method.seconds is not None:
            self.method.seconds.observe(time.monotonic() - self.begun)
