"""The spans of OpenTelemetry.  ``daemonkit.observe.traces`` loads this only when there is a collector.

A pod's start has some forty of them in both daemons.  So each is a plain object with ``__enter__`` and
``__exit__``: with the library's own context managers and ours around them it took half as long again.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import Token
from importlib.metadata import version
from types import TracebackType
from typing import Any

import grpc.aio
from opentelemetry import context, trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Span, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from daemonkit.observe.settings import TracesConfig

TEXT = 256
"""Most characters of an attribute or of an error in a span."""

_EXPORT = 3.0
"""Seconds that one export may take."""
_QUEUE = 4096
"""Most spans that wait for the collector; further ones are dropped, and the library says so."""
_PROPAGATOR = TraceContextTextMapPropagator()
_NOWHERE = context.Context()


class CurrentSpan(AbstractContextManager[trace.Span]):
    """A span that is the current one in its block, and notes how the block failed, without its stack."""

    __slots__ = ("_attributes", "_kind", "_name", "_parent", "_span", "_token", "_tracer")

    def __init__(
        self,
        tracer: trace.Tracer,
        name: str,
        attributes: Mapping[str, str],
        parent: context.Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:
        """``parent``: None is the current context."""
        self._tracer = tracer
        self._name = name
        self._attributes = attributes
        self._parent = parent
        self._kind = kind
        self._span: trace.Span = trace.INVALID_SPAN
        self._token: Token[context.Context] | None = None

    def __enter__(self) -> trace.Span:
        self._span = self._tracer.start_span(self._name, self._parent, self._kind, self._attributes)
        self._token = context.attach(trace.set_span_in_context(self._span))
        return self._span

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if error is not None:
            words = f"{type(error).__name__}: {error}"[:TEXT]
            self._span.set_status(Status(StatusCode.ERROR, words))
        self._span.end()
        if self._token is not None:
            context.detach(self._token)


class Spans:
    """The spans of one daemon, on their way to a collector."""

    def __init__(self, config: TracesConfig, daemon: str) -> None:
        named = {
            "service.name": daemon,
            "service.version": version("xenpod"),
            "host.name": socket.gethostname(),
        }
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(config.sampling)),
            resource=Resource.create(named),
            span_limits=SpanLimits(max_span_attribute_length=TEXT, max_span_attributes=16),
            shutdown_on_exit=False,
        )
        exporter = OTLPSpanExporter(config.endpoint, insecure=config.insecure, timeout=_EXPORT)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=_QUEUE))
        self.ended = False
        self._tracer = self._provider.get_tracer("xenpod", version("xenpod"))

    def shutdown(self) -> None:
        """Send what waits, and end; blocks."""
        self.ended = True
        self._provider.shutdown()

    def within(self, name: str, attributes: Mapping[str, str]) -> CurrentSpan:
        """A span below the current one."""
        return CurrentSpan(self._tracer, name, attributes)

    def served(self, service: str, rpc: str, untrusted: Mapping[str, str]) -> CurrentSpan:
        """The span of a call that is served; ``untrusted``: the caller's context."""
        parent = _PROPAGATOR.extract(untrusted, _NOWHERE)
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": rpc}
        return CurrentSpan(self._tracer, f"{service}/{rpc}", attributes, parent, SpanKind.SERVER)

    def add(self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, str | bool | int]) -> None:
        """Add a span that is over below the current one."""
        self._tracer.start_span(name, start_time=start_ns, attributes=attributes).end(end_ns)

    def called(self, name: str) -> CurrentSpan:
        """The span of a call to somebody else."""
        return CurrentSpan(self._tracer, name, {}, kind=SpanKind.CLIENT)


def recorded_since() -> int | None:
    """When the current span began, ns since the epoch; None: there is none, or it is not recorded."""
    current = trace.get_current_span()
    return current.start_time if isinstance(current, Span) and current.is_recording() else None


class TracedCalls(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]  # not generic at run time
    """Gives each call a span, and its callee the trace's context."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        if self._spans.ended:
            return await continuation(details, request)
        method = details.method.decode() if isinstance(details.method, bytes) else details.method
        with self._spans.called(method.strip("/")) as current:
            carried: dict[str, str] = {}
            _PROPAGATOR.inject(carried)
            metadata = (*(details.metadata or ()), *carried.items())
            call = await continuation(details._replace(metadata=metadata), request)
            current.set_attribute("rpc.grpc.status_code", (await call.code()).name)
            return call
