"""The streaming server: accepts connections, redeems tokens, serves jobs; everything is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any, Protocol

from cri.config import StreamingConfig, TlsConfig
from cri.streaming.http.handshake import Bad, Handshake, Request
from cri.streaming.http.negotiate import Chosen
from cri.streaming.http.tokens import LENGTH, Tokens
from cri.streaming.transport.wire import READ_SIZE, Activity, ClientGone, ClientWire, SocketWire
from daemonkit.convert import WrongKey
from daemonkit.faults import Broken
from daemonkit.logs import fields
from daemonkit.tasks import Background, race

log = logging.getLogger(__name__)

PENDING = 256
"""Most connections without a token yet; one more ends the oldest."""
URLS = 1000
_ACCEPT_PAUSE = 0.1
_REFUSE = 5.0
GOODBYE = 2.0
"""Seconds that all clients together have to read that the server stops."""


class StreamJob(Protocol):
    """The job behind a URL, which is served when its client comes."""

    @property
    def kind(self) -> str:
        """The first part of the URL's path."""
        ...

    @property
    def subject(self) -> str:
        """The container's or sandbox's id, for the log."""
        ...

    def negotiate(self, request: Request) -> Chosen[Any]:
        """Choose a transport and sub-protocol; Bad when there is none in common."""
        ...

    async def serve(
        self, wire: ClientWire, chosen: Chosen[Any], stream_timeout: float, stopping: asyncio.Event
    ) -> None:
        """Serve the client until the job has ended, or the client is gone or told that the server stops."""
        ...


class Server:
    """The streaming server; ``serving`` makes one."""

    def __init__(self, config: StreamingConfig, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        self._config = config
        self._listener = listener
        self._tls = tls
        self._tokens: Tokens[StreamJob] = Tokens(config.url_lifetime, URLS, loop.time)
        self._tasks = Background()
        self._pending: OrderedDict[asyncio.Task[None], None] = OrderedDict()
        self._serving: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        host, port = listener.getsockname()[:2]
        where = f"[{host}]" if ":" in host else host
        self.base = f"{'https' if tls else 'http'}://{where}:{port}"

    def url(self, job: StreamJob) -> str:
        """A URL for the client of ``job``, good once and for a short time."""
        return f"{self.base}/{job.kind}/{self._tokens.issue(job)}"

    def start(self) -> None:
        """Accept connections until ``close``."""
        self._accepting = self._tasks.spawn(self._accept(), "streaming server")

    async def close(self, goodbye: float) -> None:
        """End every connection within so many seconds; clients that are served are told."""
        self._stopping.set()
        for task in (self._accepting, *self._pending):
            task.cancel()
        await self._tasks.close(goodbye)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(self._listener)
            except OSError as error:  # out of descriptors: the backlog waits
                log.error("accept failed: %s", error)
                await asyncio.sleep(_ACCEPT_PAUSE)
                continue
            self._admit(client)

    def _admit(self, client: socket.socket) -> None:
        if len(self._pending) >= PENDING:
            oldest, _ = self._pending.popitem(last=False)
            oldest.cancel()
        task = self._tasks.spawn(self._connection(client), "streaming connection")
        self._pending[task] = None
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._pending.pop(task, None)
        self._serving.discard(task)

    async def _connection(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=READ_SIZE)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            timeout = self._config.handshake_timeout if self._tls else None
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, client, ssl=self._tls, ssl_handshake_timeout=timeout
            )
        except (OSError, asyncio.CancelledError) as error:
            client.close()
            if isinstance(error, asyncio.CancelledError):
                raise
            log.debug("a client failed before it asked: %s", error)
            return
        try:
            await self._talk(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
        except (OSError, TimeoutError) as error:
            log.debug("a client failed before it asked: %s", error)
        finally:
            transport.abort()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handshake = Handshake(reader, writer)
        try:
            async with asyncio.timeout(self._config.handshake_timeout):
                request = await handshake.request()
                if request is None:
                    return
                job = self._redeem(request)
                chosen = job.negotiate(request)
                early = await handshake.switch(chosen.headers)
        except Bad as bad:
            log.debug("refused: %s", bad)
            async with asyncio.timeout(_REFUSE):
                await handshake.refuse(bad)
                await SocketWire(reader, writer, Activity(), b"").close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._pending.pop(task, None)
        self._serving.add(task)
        activity = Activity()
        wire = SocketWire(reader, writer, activity, early)
        known = fields(kind=job.kind, id=job.subject)
        try:
            serve = job.serve(wire, chosen, self._config.stream_timeout, self._stopping)
            if await race(serve, activity.idle(self._config.idle_timeout)):
                log.info("stream ended: nothing came or went for too long", extra=known)
            await wire.close()
        except ClientGone as gone:
            log.info("stream ended: the client is gone: %s", gone, extra=known)

    def _redeem(self, request: Request) -> StreamJob:
        if len(self._serving) >= self._config.connections:
            raise Bad(HTTPStatus.SERVICE_UNAVAILABLE, "too many streams")
        _, _, rest = request.path.partition("/")
        kind, _, token = rest.partition("/")
        job = self._tokens.redeem(token) if len(token) == LENGTH else None
        if job is None or job.kind != kind:
            raise Bad(HTTPStatus.NOT_FOUND, "no such stream, or it was used already, or too late")
        return job


@contextlib.asynccontextmanager
async def serving(config: StreamingConfig, goodbye: float = GOODBYE) -> AsyncIterator[Server]:
    """Run a server while the block does."""
    listener = _listen(config)
    with listener:
        server = Server(config, listener, _context(config.tls))
        server.start()
        log.info("streaming", extra=fields(url=server.base))
        try:
            yield server
        finally:
            await server.close(goodbye)


def _listen(config: StreamingConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        listener = socket.create_server((config.host, config.port), family=family, backlog=512)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise WrongKey("streaming.address", f"{config.address}: not an address of this host") from error
        raise Broken("listen on", config.address, error.strerror or str(error)) from error
    listener.setblocking(False)
    return listener


def _context(config: TlsConfig) -> ssl.SSLContext | None:
    """TLS 1.2 or later; with a client CA, only clients with one of its certificates get in."""
    if config.certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.certificate, config.key)
    except OSError as error:  # ssl.SSLError is one
        cause = f"{config.certificate} with {config.key}: {error.strerror or error}"
        raise WrongKey("streaming.tls.certificate", cause) from error
    if config.client_ca is not None:
        try:
            context.load_verify_locations(config.client_ca)
        except OSError as error:
            cause = f"{config.client_ca}: {error.strerror or error}"
            raise WrongKey("streaming.tls.client_ca", cause) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context
