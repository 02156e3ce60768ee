"""Traces by OpenTelemetry, sent over OTLP (gRPC); off unless a collector is configured.

A call's span continues the trace of its caller (``traceparent``, W3C Trace Context), so one RunPodSandbox is
one trace from the kubelet through both daemons to the answers of a zone's agent.  While traces are off the
libraries are not even loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc.aio

from daemonkit.logs import fields
from daemonkit.observe.settings import TracesConfig

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

log = logging.getLogger(__name__)

CONTEXT = ("traceparent", "tracestate")
"""The metadata that carries a trace from caller to callee."""
TEXT = 256
"""Most characters of an attribute or of an error in a span."""

_EXPORT = 3.0
"""Seconds that one export may take."""
_LAST = 4.0
"""Seconds for which the end of the daemon waits for the collector."""
_QUEUE = 4096
"""Most spans that wait for the collector; further ones are dropped, and the library says so."""

Value: TypeAlias = str | bool | int
Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]

_OFF: AbstractContextManager[None] = nullcontext()
_tracer: Tracer | None = None


@contextlib.asynccontextmanager
async def tracing(config: TracesConfig, daemon: str) -> AsyncIterator[None]:
    """Trace calls and steps while the block runs, if there is a collector; then send what is left."""
    global _tracer
    if not config.endpoint:
        yield
        return
    provider = _provider(config, daemon)
    _tracer = provider.get_tracer("xenpod", version("xenpod"))
    log.info("sending traces", extra=fields(endpoint=config.endpoint))
    try:
        yield
    finally:
        _tracer = None
        await _send_rest(provider)


async def _send_rest(provider: TracerProvider) -> None:
    """Send what waits, for as long as ``_LAST``: a collector that is gone must not keep the daemon."""
    loop, sent = asyncio.get_running_loop(), asyncio.Event()

    def send() -> None:
        provider.shutdown()
        with contextlib.suppress(RuntimeError):  # the loop has been closed since
            loop.call_soon_threadsafe(sent.set)

    # Not in a thread of the loop's own, for whose end it would wait.
    threading.Thread(target=send, name="last traces", daemon=True).start()
    try:
        async with asyncio.timeout(_LAST):
            await sent.wait()
    except TimeoutError:
        log.warning("traces that were not sent are lost: the collector does not answer")


def on() -> bool:
    """Whether anything is traced."""
    return _tracer is not None


def span(name: str, attributes: dict[str, str]) -> AbstractContextManager[object]:
    """A span of something inside the daemon, below the one of the call that it serves, if any."""
    if _tracer is None:
        return _OFF
    return _within(name, attributes)


def recorded_since() -> int | None:
    """When the current span began, ns since the epoch; None: there is none, or it is not recorded."""
    if _tracer is None:
        return None
    from opentelemetry.sdk.trace import Span
    from opentelemetry.trace import get_current_span

    current = get_current_span()
    return current.start_time if isinstance(current, Span) and current.is_recording() else None


def add(name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Value]) -> None:
    """Add a span that is over below the current one."""
    if _tracer is not None:
        _tracer.start_span(name, start_time=start_ns, attributes=attributes).end(end_ns)


def serving(full_name: str, metadata: Metadata | None) -> AbstractContextManager[object]:
    """The span of a call that is served: the caller's context decides whether it is recorded."""
    if _tracer is None:
        return _OFF
    return _served(full_name, metadata or ())


def interceptors() -> list[Any]:
    """The interceptors that a client channel needs, so that its callee continues our traces."""
    if _tracer is None:
        return []
    return [_TracedCalls()]


@contextlib.contextmanager
def _within(name: str, attributes: dict[str, str]) -> Iterator[None]:
    assert _tracer is not None
    with (
        _tracer.start_as_current_span(
            name, attributes=_clipped(attributes), record_exception=False, set_status_on_exception=False
        ) as current,
        _status(current),
    ):
        yield


@contextlib.contextmanager
def _status(current: Any) -> Iterator[None]:
    """Note on the span how the block failed, in a few words and without its stack."""
    from opentelemetry.trace import Status, StatusCode

    try:
        yield
    except BaseException as error:
        current.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"[:TEXT]))
        raise


@contextlib.contextmanager
def _served(full_name: str, metadata: Metadata) -> Iterator[None]:
    from opentelemetry import context
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    assert _tracer is not None
    untrusted = {key: str(value)[:TEXT] for key, value in metadata if key in CONTEXT}
    parent = TraceContextTextMapPropagator().extract(untrusted, context.Context())
    service, _, rpc = full_name.strip("/").rpartition("/")
    attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": rpc}
    with (
        _tracer.start_as_current_span(
            f"{service}/{rpc}",
            parent,
            SpanKind.SERVER,
            attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as current,
        _status(current),
    ):
        yield


class _TracedCalls(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]  # not generic at run time
    """Gives each call a span, and its callee the trace's context."""

    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        if _tracer is None:
            return await continuation(details, request)
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        method = details.method.decode() if isinstance(details.method, bytes) else details.method
        name = method.strip("/")
        with _tracer.start_as_current_span(name, kind=SpanKind.CLIENT) as current:
            carried: dict[str, str] = {}
            TraceContextTextMapPropagator().inject(carried)
            metadata = (*(details.metadata or ()), *carried.items())
            call = await continuation(details._replace(metadata=metadata), request)
            current.set_attribute("rpc.grpc.status_code", (await call.code()).name)
            return call


def _provider(config: TracesConfig, daemon: str) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanLimits, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    named = {
        "service.name": daemon,
        "service.version": version("xenpod"),
        "host.name": socket.gethostname(),
    }
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(config.sampling)),
        resource=Resource.create(named),
        span_limits=SpanLimits(max_span_attribute_length=TEXT, max_span_attributes=16),
        shutdown_on_exit=False,
    )
    exporter = OTLPSpanExporter(config.endpoint, insecure=config.insecure, timeout=_EXPORT)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=_QUEUE))
    return provider


def _clipped(attributes: dict[str, str]) -> dict[str, str]:
    return {key: value[:TEXT] for key, value in attributes.items()}
