"""The streaming server: accepts connections, redeems tokens, serves jobs; everything is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import socket
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from cri.config import StreamingConfig, TlsConfig
from cri.streaming.http.handshake import Bad, Handshake, Request
from cri.streaming.http.negotiate import Chosen
from cri.streaming.http.tokens import TOKEN_CHARACTERS, Tokens
from cri.streaming.job import StreamJob
from cri.streaming.pods import Pods, PodStreams, Slots
from cri.streaming.transport.wire import LINGER_SECONDS, READ_BYTES, ClientGone, Pulled, SocketWire
from daemonkit.convert import WrongKey
from daemonkit.faults import Broken, Exhausted
from daemonkit.logs import fields
from daemonkit.loop.fair_scheduler import CARRIED_SECONDS, FairScheduler
from daemonkit.tasks import Background, race

log = logging.getLogger(__name__)

MOST_PENDING = 256
"""Maximum of connections without a token yet; one more ends the oldest."""
MOST_URLS = 2048
"""Maximum of unused URLs, of all pods."""
MOST_URLS_OF_POD = 128
OPENING_SECONDS = CARRIED_SECONDS
"""Advance over other pods, in seconds of steps, for each stream requested by a caller of CRI."""
_ANONYMOUS_WEIGHT = 8
"""Weight, in pods, of all connections without a token yet."""
_URL_BYTES = 1024
"""Bytes accounted for a URL, without its request."""
_ACCEPT_PAUSE_SECONDS = 0.1
_REFUSE_SECONDS = 5.0
GOODBYE_SECONDS = 2.0
"""Seconds for all clients together to read that the server stops."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job still without its client."""

    job: StreamJob
    pod: PodStreams


_Upgraded = tuple[Waiting, Chosen[Any], Callable[[], None]]
"""A redeemed job, its protocol, and a function to free its slot."""


class Server:
    """The streaming server; ``serving_streams`` makes one."""

    def __init__(
        self,
        config: StreamingConfig,
        listener: socket.socket,
        tls: ssl.SSLContext | None,
        scheduler: FairScheduler,
    ) -> None:
        self._config = config
        self._listener = listener
        self._tls = tls
        self._tokens: Tokens[Waiting] = Tokens(config.url_lifetime, asyncio.get_running_loop().time)
        self._tasks = Background()
        self._pending: OrderedDict[asyncio.Task[None], None] = OrderedDict()
        self._stopping = asyncio.Event()
        self.pods = Pods(scheduler)
        """The pods with streams."""
        self._anonymous = scheduler.share(weight=_ANONYMOUS_WEIGHT)
        """The share of all connections without a token yet."""
        limits = ("streaming.connections", "streaming.connections_per_pod")
        self._streams = Slots(config.connections, config.connections_per_pod, "streams", limits)
        self._urls = Slots(MOST_URLS, MOST_URLS_OF_POD, "unused URLs", ("this server", "this server"))
        host, port = listener.getsockname()[:2]
        where = f"[{host}]" if ":" in host else host
        self.base = f"{'https' if tls else 'http'}://{where}:{port}"

    def url(self, job: StreamJob) -> str:
        """A URL for the client of ``job``, good once and for a short time.

        Exhausted: the pod has too many unused URLs, or they are too large.
        """
        self._tokens.expire()
        pod, size = self.pods.part(job.pod, job.namespace), _URL_BYTES + job.size
        trouble = self._urls.trouble(job.pod, job.namespace)
        if not trouble and pod.quota.half_full:
            trouble = f"the streams and unused URLs of pod {job.pod} take all the memory that a pod may have"
        if trouble:
            hint = f"use the URLs, or wait {self._config.url_lifetime:g} s until they expire"
            raise Exhausted(f"make a URL for {job.kind} in", job.subject, trouble, hint)
        pod.quota.take(size)
        slot = self._urls.take(job.pod, job.namespace)

        def gone() -> None:
            slot()
            pod.quota.give(size)

        return f"{self.base}/{job.kind}/{self._tokens.issue(Waiting(job, pod), gone)}"

    def start(self) -> None:
        """Accept connections until ``close``."""
        self._accepting = self._tasks.spawn(self._accept(), "streaming server")

    async def close(self, goodbye: float) -> None:
        """End every connection within ``goodbye`` seconds; served clients are told."""
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
                await asyncio.sleep(_ACCEPT_PAUSE_SECONDS)
                continue
            self._admit(client)

    def _admit(self, client: socket.socket) -> None:
        if len(self._pending) >= MOST_PENDING:
            oldest, _ = self._pending.popitem(last=False)
            oldest.cancel()
        task = self._tasks.spawn(self._connection(client), "streaming connection")
        self._pending[task] = None
        task.add_done_callback(lambda ended: self._pending.pop(ended, None))

    async def _connection(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=READ_BYTES)
        protocol = Pulled(reader)
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
            wire = SocketWire(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
            await self._talk(wire)
        except (OSError, TimeoutError, ClientGone) as error:
            log.debug("a client failed before it asked: %s", error)
        finally:
            transport.abort()

    async def _talk(self, wire: SocketWire) -> None:
        begun = await self._greet(wire)
        if begun is None:
            return
        waiting, chosen, slot = begun
        task = asyncio.current_task()
        assert task is not None
        self._pending.pop(task, None)
        try:
            await waiting.pod.share.pay(lambda: self._serve(wire, waiting, chosen))
        finally:
            wire.quota.close()
            slot()

    async def _greet(self, wire: SocketWire) -> _Upgraded | None:
        """Answer the request; None: it is refused, or the client left.

        Only the request line is read at the expense of all connections without a token: a client would
        otherwise wait for all other clients' handshakes.
        """
        handshake = Handshake(wire)
        try:
            async with asyncio.timeout(self._config.handshake_timeout):
                waiting = self._find(await self._anonymous.pay(handshake.target))
                payer = waiting.pod.share if waiting else self._anonymous
                return await payer.pay(lambda: self._upgrade(handshake, wire))
        except Bad as bad:
            log.debug("refused: %s", bad)
            await self._anonymous.pay(functools.partial(_refuse, handshake, wire, bad))
            return None

    async def _upgrade(self, handshake: Handshake, wire: SocketWire) -> _Upgraded | None:
        """Bad: refused.  None: the client left."""
        request = await handshake.request()
        if request is None:
            return None
        waiting = self._redeem(request)
        chosen = waiting.job.negotiate(request)
        slot = self._streams.take(waiting.job.pod, waiting.job.namespace)
        try:
            wire.unread(await handshake.switch(chosen.headers))
            wire.belongs_to(waiting.pod.quota)
        except BaseException:
            slot()
            raise
        return waiting, chosen, slot

    async def _serve(self, wire: SocketWire, waiting: Waiting, chosen: Chosen[Any]) -> None:
        job = waiting.job
        known = fields(kind=job.kind, id=job.subject)
        try:
            serve = job.serve(wire, chosen, self._config.stream_timeout, self._stopping)
            idle = wire.activity.idle(self._config.idle_timeout)
            if why := await race(serve, race(idle, _outlived(waiting.pod.ended))):
                log.info("stream ended: %s", why, extra=known)
            await wire.close()
        except ClientGone as gone:
            log.info("stream ended: the client is gone: %s", gone, extra=known)

    def _redeem(self, request: Request) -> Waiting:
        waiting = self._find(request.path)
        if waiting is None:
            raise Bad(HTTPStatus.NOT_FOUND, "no such stream, or it was used already, or too late")
        if trouble := self._streams.trouble(waiting.job.pod, waiting.job.namespace):
            full = self._streams.full
            status = HTTPStatus.SERVICE_UNAVAILABLE if full else HTTPStatus.TOO_MANY_REQUESTS
            raise Bad(status, trouble)
        self._tokens.redeem(_token(request.path)[1])
        # Otherwise each step of opening a stream would wait for a turn of all open streams.
        waiting.pod.share.asked(OPENING_SECONDS)
        return waiting

    def _find(self, path: str) -> Waiting | None:
        kind, token = _token(path)
        waiting = self._tokens.find(token) if len(token) == TOKEN_CHARACTERS else None
        return waiting if waiting is not None and waiting.job.kind == kind else None


def _token(path: str) -> tuple[str, str]:
    """The kind of stream and the token, both unchecked."""
    _, _, rest = path.partition("/")
    kind, _, token = rest.partition("/")
    return kind, token


async def _refuse(handshake: Handshake, wire: SocketWire, bad: Bad) -> None:
    async with asyncio.timeout(_REFUSE_SECONDS):
        await handshake.refuse(bad)
        await wire.close()


async def _outlived(ended: asyncio.Event) -> str:
    """Wait for a pod's end, plus time for its processes' last output; returns the reason."""
    await ended.wait()
    await asyncio.sleep(LINGER_SECONDS)
    return "its pod has ended"


@contextlib.asynccontextmanager
async def serving_streams(
    config: StreamingConfig, goodbye: float = GOODBYE_SECONDS, scheduler: FairScheduler | None = None
) -> AsyncIterator[Server]:
    """Run a server while the block does.  ``scheduler``: for all users of the event loop."""
    listener = _listen(config)
    with listener:
        server = Server(config, listener, _context(config.tls), scheduler or FairScheduler())
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
    """TLS 1.2 or later; with a client CA, only clients with a certificate from this CA get in."""
    if config.certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.certificate, config.key)
    except OSError as error:  # ssl.SSLError is a subclass
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
