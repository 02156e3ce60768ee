"""The spans of OpenTelemetry.  ``daemonkit.observe.traces`` loads this module only with a collector.

The library samples, carries, batches and sends spans, but this module records them.  The library's own
recorder (events, links, limits, locks) would be unused, and took about 100 us for each of the thirty spans of
a pod's start: rarely running code finds no cache warm.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from importlib.metadata import version
from types import TracebackType
from typing import Any, NamedTuple

import grpc.aio
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from daemonkit.observe.attributes import Value
from daemonkit.observe.observe_settings import TracesConfig

TEXT = 256
"""Most characters of an attribute or of an error in a span."""

_EXPORT_SECONDS = 3.0
"""Seconds allowed for an export."""
_QUEUE_SPANS = 4096
"""Limit of spans waiting for the collector; further spans are dropped, and the library logs the loss."""
_BATCH_SPANS = 64
"""Limit of ended spans kept until the served call ends."""
_CODE = "rpc.grpc.status_code"
_PROPAGATOR = TraceContextTextMapPropagator()
_NOWHERE = Context()
_IDS = RandomIdGenerator()
_FINE = Status()


class Trace(NamedTuple):
    """Shared by all spans of a trace; the flags include whether to record."""

    id: int
    flags: TraceFlags
    state: TraceState


class RecordedSpan(AbstractContextManager["RecordedSpan"]):
    """The current span in its block; records how the block failed, without the stack."""

    __slots__ = (
        "_above",
        "_attributes",
        "_error",
        "_id",
        "_name",
        "_parent",
        "_spans",
        "begun_ns",
        "ended_ns",
        "kind",
        "trace",
    )

    def __init__(
        self,
        spans: Spans,
        name: str,
        attributes: dict[str, Value],
        trace: Trace,
        parent: RecordedSpan | SpanContext | None,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:
        """``parent``: a SpanContext belongs to another process; None: the trace's first span."""
        self._spans = spans
        self._name = name
        self._attributes = attributes
        self._parent = parent
        self.kind = kind
        self._id = _IDS.generate_span_id()
        self._error = ""
        self.trace = trace
        self.begun_ns = self.ended_ns = 0

    @property
    def context(self) -> SpanContext:
        """The span's ids and the trace's flags and state, in the library's form."""
        return SpanContext(self.trace.id, self._id, False, self.trace.flags, self.trace.state)

    def carried(self) -> Iterable[tuple[str, str]]:
        """The metadata that continues the trace in a callee."""
        metadata: dict[str, str] = {}
        _PROPAGATOR.inject(metadata, set_span_in_context(NonRecordingSpan(self.context), _NOWHERE))
        return metadata.items()

    def set_attribute(self, key: str, value: Value) -> None:
        """Add an attribute."""
        self._attributes[key] = value

    def __enter__(self) -> RecordedSpan:
        self._above = _CURRENT.get()
        _CURRENT.set(self)
        self.begun_ns = time.time_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        _CURRENT.set(self._above)
        if error is not None:
            said = error.details() if isinstance(error, grpc.aio.AioRpcError) else error
            self._error = f"{type(error).__name__}: {said}"[:TEXT]
        self.ended_ns = time.time_ns()
        self._spans.keep(self)

    def exported(self, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
        """The library's form of an ended span."""
        parent = self._parent
        return ReadableSpan(
            self._name,
            self.context,
            parent.context if isinstance(parent, RecordedSpan) else parent,
            resource,
            {key: one[:TEXT] if isinstance(one, str) else one for key, one in self._attributes.items()},
            kind=self.kind,
            status=Status(StatusCode.ERROR, self._error) if self._error else _FINE,
            start_time=self.begun_ns,
            end_time=self.ended_ns,
            instrumentation_scope=scope,
        )


_CURRENT: ContextVar[RecordedSpan | None] = ContextVar("span", default=None)


class _Exporter(OTLPSpanExporter):
    """Converts recorded spans into the library's, a batch at a time, in the sending thread."""

    def __init__(self, config: TracesConfig, daemon: str) -> None:
        super().__init__(config.endpoint, insecure=config.insecure, timeout=_EXPORT_SECONDS)
        named = {
            "service.name": daemon,
            "service.version": version("xenpod"),
            "host.name": socket.gethostname(),
        }
        self._resource = Resource.create(named)
        self._scope = InstrumentationScope("xenpod", version("xenpod"))

    def export(self, spans: Sequence[Any]) -> SpanExportResult:
        return super().export([one.exported(self._resource, self._scope) for one in spans])


class Spans:
    """The spans of a daemon, on their way to a collector."""

    def __init__(self, config: TracesConfig, daemon: str) -> None:
        self.ended = False
        self._own_traces = TraceIdRatioBased(config.sampling)
        self._processor = BatchSpanProcessor(_Exporter(config, daemon), max_queue_size=_QUEUE_SPANS)
        self._over: list[RecordedSpan] = []

    def shutdown(self) -> None:
        """Send waiting spans, and end; blocks."""
        self.ended = True
        self._queue()
        self._processor.shutdown()  # type: ignore[no-untyped-call]

    def keep(self, span: RecordedSpan) -> None:
        """Keep an ended span of a recorded trace until the served call ends, too.

        Queueing spans in a row takes a quarter of the time of queueing each at its end.
        """
        if span.trace.flags.sampled:
            self._over.append(span)
            if span.kind is SpanKind.SERVER or len(self._over) >= _BATCH_SPANS:
                self._queue()

    def _queue(self) -> None:
        over, self._over = self._over, []
        for one in over:
            self._processor.on_end(one)  # type: ignore[arg-type]  # _Exporter converts it

    def within(self, name: str, attributes: Mapping[str, Value]) -> RecordedSpan:
        """A span below the current one."""
        return self._below_current(name, dict(attributes), SpanKind.INTERNAL)

    def called(self, name: str) -> RecordedSpan:
        """The span of a call to another server."""
        return self._below_current(name, {}, SpanKind.CLIENT)

    def served(self, service: str, rpc: str, untrusted: Mapping[str, str]) -> RecordedSpan:
        """The span of a served call; ``untrusted``: the caller's context."""
        found = get_current_span(_PROPAGATOR.extract(untrusted, _NOWHERE)).get_span_context()
        attributes: dict[str, Value] = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": rpc}
        name = f"{service}/{rpc}"
        if not found.is_valid:
            return RecordedSpan(self, name, attributes, self._new_trace(), None, SpanKind.SERVER)
        trace = Trace(found.trace_id, found.trace_flags, found.trace_state)
        return RecordedSpan(self, name, attributes, trace, found, SpanKind.SERVER)

    def add(self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Value]) -> None:
        """Add an ended span below the current one."""
        span = self.within(name, attributes)
        span.begun_ns, span.ended_ns = start_ns, end_ns
        self.keep(span)

    def _below_current(self, name: str, attributes: dict[str, Value], kind: SpanKind) -> RecordedSpan:
        current = _CURRENT.get()
        trace = self._new_trace() if current is None else current.trace
        return RecordedSpan(self, name, attributes, trace, current, kind)

    def _new_trace(self) -> Trace:
        """A new trace; ``traces.sampling`` is the fraction of recorded traces."""
        number = _IDS.generate_trace_id()
        recorded = self._own_traces.should_sample(None, number, "").decision is Decision.RECORD_AND_SAMPLE
        flags = TraceFlags(TraceFlags.SAMPLED if recorded else TraceFlags.DEFAULT)
        return Trace(number, flags, TraceState())


def recorded_since() -> int | None:
    """Start of the current span, ns since the epoch; None: no span, or not recorded."""
    current = _CURRENT.get()
    return current.begun_ns if current is not None and current.trace.flags.sampled else None


class TracedChannel:
    """A channel for stubs.  Each call with one request and one reply has a span, and carries its context.

    An interceptor of grpc.aio could do the same, but starts a task for each call: half of the cost of tracing
    a pod's start.
    """

    def __init__(self, channel: grpc.aio.Channel, spans: Spans) -> None:
        self._spans = spans
        self.unary_stream = channel.unary_stream
        self.stream_unary = channel.stream_unary
        self.stream_stream = channel.stream_stream
        self._unary_unary = channel.unary_unary

    def unary_unary(self, method: str, *args: Any, **how: Any) -> Callable[..., Awaitable[Any]]:
        """Make the callable of a method.  A call is sent when awaited, not before."""
        inner: Callable[..., Awaitable[Any]] = self._unary_unary(method, *args, **how)
        name = method.strip("/")

        async def call(request: Any, *, metadata: tuple[tuple[str, str], ...] = (), **more: Any) -> Any:
            if self._spans.ended:
                return await inner(request, metadata=metadata, **more)
            with self._spans.called(name) as current:
                try:
                    reply = await inner(request, metadata=(*metadata, *current.carried()), **more)
                except grpc.aio.AioRpcError as error:
                    current.set_attribute(_CODE, error.code().name)
                    raise
                current.set_attribute(_CODE, grpc.StatusCode.OK.name)
                return reply

        return call
