"""Serves the metrics to Prometheus: ``GET /metrics`` on a loopback address, HTTP/1.1.

The server runs on the event loop. The library's own server has a thread for each request and no limit.
Figures are read on the loop, and only the text is made in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence

import h11
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder

from daemonkit.convert import WrongKey
from daemonkit.faults import Fault
from daemonkit.logs import fields
from daemonkit.observe import metrics
from daemonkit.observe.observe_settings import MetricsConfig

log = logging.getLogger(__name__)

_MOST_CONNECTIONS = 16
_HEADERS_BYTES = 16 * 1024
_DEADLINE_SECONDS = 10.0
_CHUNK_BYTES = 4096
_PATH = b"/metrics"

Figures = Callable[[], Awaitable[Iterable[Metric]]]
"""Reads current figures, for example the number of zones."""


@contextlib.asynccontextmanager
async def serving_metrics(
    config: MetricsConfig, daemon: str, figures: Sequence[Figures] = ()
) -> AsyncIterator[int]:
    """Serve the metrics of ``daemon`` while the block runs.  Yields the port, or 0 if not served.

    ``figures`` are read for each scrape.  Unreadable figures are left out, logged and counted. WrongKey: the
    address cannot be used.
    """
    if not config.address:
        yield 0
        return
    metrics.name_daemon(daemon)
    scrapes = _Scrapes(figures)
    host, port = config.place
    try:
        server = await asyncio.start_server(scrapes.talk, host, port, limit=_HEADERS_BYTES)
    except OSError as error:
        raise WrongKey("metrics.address", f"{config.address}: {error.strerror or error}") from error
    lag = asyncio.ensure_future(metrics.watch_loop())
    try:
        port = server.sockets[0].getsockname()[1]
        log.info("serving metrics", extra=fields(address=f"{host}:{port}"))
        yield port
    finally:
        lag.cancel()
        server.close()
        await scrapes.close()


class _Scrapes:
    """Answers one request on each connection."""

    def __init__(self, figures: Sequence[Figures]) -> None:
        self._figures = figures
        self._turn = asyncio.Lock()
        self._talks: set[asyncio.Task[None]] = set()

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(self._talks) >= _MOST_CONNECTIONS:
                return
            self._talks.add(task)
            async with asyncio.timeout(_DEADLINE_SECONDS):
                await self._answer(reader, writer)
        except (TimeoutError, OSError, h11.ProtocolError) as error:
            log.debug("a scrape ended early: %s", error)
        finally:
            self._talks.discard(task)
            writer.close()

    async def close(self) -> None:
        """End all open connections."""
        talks = list(self._talks)
        for task in talks:
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEADERS_BYTES)
        try:
            request = await _request(talk, reader)
        except h11.RemoteProtocolError as error:
            writer.write(_reply(talk, error.error_status_hint, b"text/plain", b"not an HTTP request\n"))
            await writer.drain()
            return
        if request is None:
            return
        status, kind, body = await self._page(request)
        writer.write(_reply(talk, status, kind, b"" if request.method == b"HEAD" else body))
        await writer.drain()

    async def _page(self, request: h11.Request) -> tuple[int, bytes, bytes]:
        if request.target.partition(b"?")[0] != _PATH:
            return 404, b"text/plain", b"the metrics are at /metrics\n"
        if request.method not in (b"GET", b"HEAD"):
            return 405, b"text/plain", b"only GET and HEAD\n"
        accepted = dict(request.headers).get(b"accept", b"").decode("latin-1")
        encode, kind = choose_encoder(accepted)
        # One scrape at a time: a frequent scraper delays only itself.
        async with self._turn:
            families: list[Metric] = []
            for read in self._figures:
                try:
                    families += await read()
                except Fault as fault:
                    metrics.UNREAD.inc()
                    log.warning("figures are left out of the metrics: %s", fault)
            text = await asyncio.to_thread(encode, _Page(families))
        return 200, kind.encode("ascii"), text


class _Page(CollectorRegistry):
    """The content of a scrape: the registry's metrics, and the current figures."""

    def __init__(self, families: Sequence[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from metrics.REGISTRY.collect()
        yield from self._families


async def _request(talk: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
    """The request; None: the client left before its end."""
    while True:
        event = talk.next_event()
        if event is h11.NEED_DATA:
            talk.receive_data(await reader.read(_CHUNK_BYTES))
        elif isinstance(event, h11.Request):
            return event
        else:
            return None


def _reply(talk: h11.Connection, status: int, kind: bytes, body: bytes) -> bytes:
    """The whole answer in bytes."""
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    parts = [talk.send(h11.Response(status_code=status, headers=headers))]
    if body:
        parts.append(talk.send(h11.Data(data=body)))
    return b"".join(part for part in parts if part)
