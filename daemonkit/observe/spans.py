"""The spans of OpenTelemetry.  ``daemonkit.observe.traces`` loads this only when there is a collector.

Spans are sampled, carried, batched and sent by the library, but recorded here.  Of the library's own recorder
(events, links, limits, locks) nothing would be used.  With it each of the thirty spans of a pod's start took
some 100 us: code that runs once in a while finds no cache warm.
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

from daemonkit.observe.settings import TracesConfig
from daemonkit.observe.traces import Value

TEXT = 256
"""Most characters of an attribute or of an error in a span."""

_EXPORT = 3.0
"""Seconds that one export may take."""
_QUEUE = 4096
"""Most spans that wait for the collector; further ones are dropped, and the library says so."""
_AT_ONCE = 64
"""Most ended spans that are kept until the served call ends."""
_CODE = "rpc.grpc.status_code"
_PROPAGATOR = TraceContextTextMapPropagator()
_NOWHERE = Context()
_IDS = RandomIdGenerator()
_FINE = Status()


class Trace(NamedTuple):
    """What all spans of a trace share; the flags say whether they are recorded."""

    id: int
    flags: TraceFlags
    state: TraceState


class RecordedSpan(AbstractContextManager["RecordedSpan"]):
    """A span that is the current one in its block, and notes how the block failed, without its stack."""

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
        """``parent``: a SpanContext is of a span in another process; None: the span is the trace's first."""
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
        """Its ids and the trace's flags and state, in the library's form."""
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
        """The library's form of it, once it has ended."""
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
    """Converts our spans into the library's, a batch at a time, in the thread that sends them."""

    def __init__(self, config: TracesConfig, daemon: str) -> None:
        super().__init__(config.endpoint, insecure=config.insecure, timeout=_EXPORT)
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
    """The spans of one daemon, on their way to a collector."""

    def __init__(self, config: TracesConfig, daemon: str) -> None:
        self.ended = False
        self._own_traces = TraceIdRatioBased(config.sampling)
        self._processor = BatchSpanProcessor(_Exporter(config, daemon), max_queue_size=_QUEUE)
        self._over: list[RecordedSpan] = []

    def shutdown(self) -> None:
        """Send what waits, and end; blocks."""
        self.ended = True
        self._queue()
        self._processor.shutdown()  # type: ignore[no-untyped-call]

    def keep(self, span: RecordedSpan) -> None:
        """Keep an ended span of a recorded trace until the served call ends, too.

        Queueing spans in a row takes a quarter of the time of queueing each as it ends.
        """
        if span.trace.flags.sampled:
            self._over.append(span)
            if span.kind is SpanKind.SERVER or len(self._over) >= _AT_ONCE:
                self._queue()

    def _queue(self) -> None:
        over, self._over = self._over, []
        for one in over:
            self._processor.on_end(one)  # type: ignore[arg-type]  # _Exporter converts it

    def within(self, name: str, attributes: Mapping[str, Value]) -> RecordedSpan:
        """A span below the current one."""
        return self._below_current(name, dict(attributes), SpanKind.INTERNAL)

    def called(self, name: str) -> RecordedSpan:
        """The span of a call to somebody else."""
        return self._below_current(name, {}, SpanKind.CLIENT)

    def served(self, service: str, rpc: str, untrusted: Mapping[str, str]) -> RecordedSpan:
        """The span of a call that is served; ``untrusted``: the caller's context."""
        found = get_current_span(_PROPAGATOR.extract(untrusted, _NOWHERE)).get_span_context()
        attributes: dict[str, Value] = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": rpc}
        name = f"{service}/{rpc}"
        if not found.is_valid:
            return RecordedSpan(self, name, attributes, self._new_trace(), None, SpanKind.SERVER)
        trace = Trace(found.trace_id, found.trace_flags, found.trace_state)
        return RecordedSpan(self, name, attributes, trace, found, SpanKind.SERVER)

    def add(self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Value]) -> None:
        """Add a span that is over below the current one."""
        span = self.within(name, attributes)
        span.begun_ns, span.ended_ns = start_ns, end_ns
        self.keep(span)

    def _below_current(self, name: str, attributes: dict[str, Value], kind: SpanKind) -> RecordedSpan:
        current = _CURRENT.get()
        trace = self._new_trace() if current is None else current.trace
        return RecordedSpan(self, name, attributes, trace, current, kind)

    def _new_trace(self) -> Trace:
        """A trace that begins here; ``traces.sampling`` says how many of those are recorded."""
        number = _IDS.generate_trace_id()
        recorded = self._own_traces.should_sample(None, number, "").decision is Decision.RECORD_AND_SAMPLE
        flags = TraceFlags(TraceFlags.SAMPLED if recorded else TraceFlags.DEFAULT)
        return Trace(number, flags, TraceState())


def recorded_since() -> int | None:
    """When the current span began, ns since the epoch; None: there is none, or it is not recorded."""
    current = _CURRENT.get()
    return current.begun_ns if current is not None and current.trace.flags.sampled else None


class TracedChannel:
    """A channel for stubs.  Each call with one request and one reply has a span, and carries its context.

    An interceptor of grpc.aio could do the same, but starts a task for each call.  That was half of what
    tracing a pod's start cost.
    """

    def __init__(self, channel: grpc.aio.Channel, spans: Spans) -> None:
        self._spans = spans
        self.unary_stream = channel.unary_stream
        self.stream_unary = channel.stream_unary
        self.stream_stream = channel.stream_stream
        self._unary_unary = channel.unary_unary

    def unary_unary(self, method: str, *args: Any, **how: Any) -> Callable[..., Awaitable[Any]]:
        """Make the callable of a method.  Its calls are sent when they are awaited, not before."""
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
