"""Traces by OpenTelemetry, sent over OTLP (gRPC); off unless a collector is configured.

A call's span continues the trace of its caller (``traceparent``, W3C Trace Context): a RunPodSandbox is one
trace from the kubelet through both daemons to the answers of a zone's agent.  With traces off, the libraries
are not loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

from daemonkit.logs import fields
from daemonkit.observe.attributes import Value
from daemonkit.observe.observe_settings import TracesConfig

if TYPE_CHECKING:
    import grpc.aio

    from daemonkit.observe.spans import Spans

log = logging.getLogger(__name__)

CONTEXT = ("traceparent", "tracestate")
"""The metadata that carries a trace from caller to callee."""
LONGEST_CHARACTERS = 256
"""Most characters to read of each value."""

_LAST = 4.0
"""Seconds for which the daemon's end waits for the collector."""

Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]

_OFF: AbstractContextManager[None] = nullcontext()
_spans: Spans | None = None


@contextlib.asynccontextmanager
async def tracing(config: TracesConfig, daemon: str) -> AsyncIterator[None]:
    """Trace calls and steps while the block runs, if a collector is configured; then send the rest."""
    global _spans
    if not config.endpoint:
        yield
        return
    from daemonkit.observe.spans import Spans

    gc.freeze()  # the libraries just loaded stay for good, like other modules (daemonkit.lifecycle)
    _spans = made = Spans(config, daemon)
    log.info("sending traces", extra=fields(endpoint=config.endpoint))
    try:
        yield
    finally:
        _spans = None
        await _send_rest(made)


async def _send_rest(spans: Spans) -> None:
    """Send waiting spans, for at most ``_LAST``: a missing collector must not delay the daemon's end."""
    loop, sent = asyncio.get_running_loop(), asyncio.Event()

    def send() -> None:
        spans.shutdown()
        with contextlib.suppress(RuntimeError):  # the loop may be closed already
            loop.call_soon_threadsafe(sent.set)

    # Not in a thread of the loop: the loop would wait for its end.
    threading.Thread(target=send, name="last traces", daemon=True).start()
    try:
        async with asyncio.timeout(_LAST):
            await sent.wait()
    except TimeoutError:
        log.warning("traces that were not sent are lost: the collector does not answer")


def on() -> bool:
    """Whether anything is traced."""
    return _spans is not None


def span(name: str, attributes: Mapping[str, str]) -> AbstractContextManager[object]:
    """A span inside the daemon, below the span of the served call, if any."""
    return _OFF if _spans is None else _spans.within(name, attributes)


def recorded_since() -> int | None:
    """Start of the current span, ns since the epoch; None: no span, or not recorded."""
    if _spans is None:
        return None
    from daemonkit.observe import spans

    return spans.recorded_since()


def add_span(name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Value]) -> None:
    """Add an ended span below the current one."""
    if _spans is not None:
        _spans.add(name, start_ns, end_ns, attributes)


def serving_span(full_name: str, metadata: Metadata | None) -> AbstractContextManager[object]:
    """The span of a served call: the caller's context decides whether to record."""
    if _spans is None:
        return _OFF
    untrusted = {key: str(value)[:LONGEST_CHARACTERS] for key, value in metadata or () if key in CONTEXT}
    service, _, rpc = full_name.strip("/").rpartition("/")
    return _spans.served(service, rpc, untrusted)


def traced(channel: grpc.aio.Channel) -> Any:
    """Wrap a channel to continue traces in callees.  Without traces, returns the channel unchanged."""
    if _spans is None:
        return channel
    from daemonkit.observe.spans import TracedChannel

    return TracedChannel(channel, _spans)
