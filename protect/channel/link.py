"""The link to one zone's agent: connects, greets, calls, resumes, and cuts off an agent that breaks rules.

dial -> HELLO -> events.connected -> streams resumed -> frames both ways -> connection lost -> dial ...
                                                                         -> violation: cut off, stay so
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context, ContextVar

from daemonkit.backoff import Backoff
from daemonkit.faults import Fault, TooLate
from daemonkit.loop.fair_scheduler import FairScheduler
from daemonkit.observe.steps import step
from protect.channel import counts, guest_steps
from protect.channel.connection import AgentConnection
from protect.channel.inputs import InputStream
from protect.channel.table import StreamTable
from protect.channel.wire import ChannelWire
from protect.model.errors import DomainGone, LinkDown, ProtocolViolation
from protect.model.ports import LinkEvents, Sink
from protect.model.process import AgentHello
from protect.model.transport import Transport
from xenpod_proto.channel.v1 import channel_pb2

log = logging.getLogger(__name__)

STEADY_SECONDS = 10.0
"""Seconds after which a connection counts as good: its successor is then tried at once."""

_connecting: ContextVar[bool] = ContextVar("connecting", default=False)
"""Set while ``LinkEvents.connected`` runs: calls from inside need not wait for the end of ``connected``."""


class Link:
    """One zone's channel; reconnects by itself from ``open`` until ``close`` or a violation."""

    def __init__(
        self,
        zone_id: str,
        dial: Callable[[], Awaitable[Transport]],
        events: LinkEvents,
        scheduler: FairScheduler | None = None,
    ) -> None:
        """``scheduler``: for all links in this process; None: this link is the only link."""
        self._zone_id = zone_id
        self._dial = dial
        self._events = events
        self._share = (scheduler or FairScheduler()).share()
        self._streams = StreamTable(self._share)
        self._boot: bytes | None = None
        self._runner: asyncio.Task[None] | None = None
        self._connection: AgentConnection | None = None
        self._backoff = Backoff()
        self._told = False
        self._down: Fault = LinkDown("reach", f"zone {zone_id}", "its channel is not open")

    @property
    def connected(self) -> bool:
        """Whether calls can be made now."""
        return self._connection is not None

    async def open(self, timeout: float) -> AgentHello:
        """Connect for the first time, or again after a violation; returns after ``connected`` has.

        TooLate with the last failure in its cause; ProtocolViolation; DomainGone.  After an error the link is
        closed.
        """
        await self.close()
        opened: asyncio.Future[AgentHello] = asyncio.get_running_loop().create_future()
        # In a separate context: the task outlives the opening call and its trace.
        name, own = f"link {self._zone_id}", Context()
        self._runner = asyncio.create_task(self._run(opened), name=name, context=own)
        try:
            async with asyncio.timeout(timeout):
                return await opened
        except TimeoutError as error:
            last = self._down
            await self.close()
            cause = f"no connection within {timeout:g} s; last: {last.cause}"
            raise TooLate("reach", f"zone {self._zone_id}", cause) from error
        except BaseException:
            await self.close()
            raise

    async def call(self, request: channel_pb2.Request, timeout: float) -> channel_pb2.Reply:
        """Make a call; a reply with another operation's result is a violation.

        The agent's error comes as the matching fault.  LinkDown: not connected, or the connection ended
        during the call.  TooLate: no answer within ``timeout`` seconds.  In both cases the call may take
        effect.  Cancelling leaves the link unchanged.
        """
        operation = _operation(request)
        if self._connection is None:
            raise self._down
        self._share.asked()
        try:
            with step(f"agent.{operation}", zone=self._zone_id):
                async with asyncio.timeout(timeout):
                    reply = await self._connection.call(operation, request, _connecting.get())
                guest_steps.show(reply.steps)
                return reply
        except TimeoutError as error:
            name = operation.replace("_", " ")
            raise TooLate(name, f"in zone {self._zone_id}", f"no answer within {timeout:g} s") from error

    def ask(self, request: channel_pb2.Request) -> asyncio.Future[channel_pb2.Reply]:
        """Make a call without effect in the zone: no deadline, no task, no wait for other calls.

        For queries to all zones at once.  The future gets the reply, the agent's error, or LinkDown at the
        end of the connection.  LinkDown: not connected.  Exhausted: too many queries are open.
        """
        if self._connection is None:
            raise self._down
        self._share.asked()
        return self._connection.ask(_operation(request), request)

    def output(self, stream: int, sink: Sink, consumed: int = 0) -> None:
        """Deliver this stream to the sink, from ``consumed`` on.

        A registration lasts for the boot, across connections; a repetition with the same sink is harmless.
        Missing: the stream has ended or was dropped.
        """
        self._streams.output(stream, sink, consumed)

    def drop_output(self, stream: int) -> None:
        """Abandon this stream: its process may go on writing, but the bytes are discarded."""
        self._streams.drop_output(stream)

    def input(self, stream: int) -> InputStream:
        """The input for writing this stream, shared by all callers.  Missing: the process closed it."""
        return self._streams.input(stream)

    def drop_input(self, stream: int) -> None:
        """Abandon this stream: its process is removed, or will be soon."""
        self._streams.drop_input(stream)

    async def close(self) -> None:
        """Disconnect for good; sinks get no more bytes, and unconsumed bytes stay in the zone."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.cancel()
            await asyncio.gather(runner, return_exceptions=True)
            self._down = LinkDown("reach", f"zone {self._zone_id}", "its channel is closed")
        await self._forget(self._down)

    async def _forget(self, why: Fault) -> None:
        """End all streams of the current boot."""
        streams, self._streams, self._boot = self._streams, StreamTable(self._share), None
        await streams.close(why)

    async def _run(self, opened: asyncio.Future[AgentHello]) -> None:
        self._backoff = Backoff()
        while True:
            await asyncio.sleep(self._backoff.delay())
            try:
                await self._share.run(functools.partial(self._connect, opened))
            except (ProtocolViolation, DomainGone) as final:
                await self._cut_off(final, opened)
                return
            except (OSError, Fault) as failure:
                self._note(failure)
            except Exception as failure:
                log.exception("the link to zone %s failed", self._zone_id)
                self._note(failure)

    def _note(self, failure: Exception) -> None:
        cause = failure.cause if isinstance(failure, Fault) else str(failure) or type(failure).__name__
        # Logged once until the link has been up for a while: retries may fail in the same way.
        level = logging.DEBUG if self._told else logging.INFO
        self._told = True
        log.log(level, "zone %s: channel down, connecting again: %s", self._zone_id, cause)
        self._down = LinkDown("reach", f"zone {self._zone_id}", cause)

    async def _cut_off(self, final: Fault, opened: asyncio.Future[AgentHello]) -> None:
        self._down = type(final)("reach", f"zone {self._zone_id}", final.cause)
        await self._forget(self._down)
        if isinstance(final, ProtocolViolation):
            counts.VIOLATIONS.inc()
            log.warning("zone %s broke the channel's rules and is cut off: %s", self._zone_id, final.cause)
            self._events.violation(final.cause)
        if not opened.done():
            opened.set_exception(self._down)

    async def _connect(self, opened: asyncio.Future[AgentHello]) -> None:
        """Run one connection from dial to end; the end is always an exception."""
        transport = await self._dial()
        try:
            wire = ChannelWire(transport, self._zone_id, self._share)
            hello = await wire.greet()
            counts.CONNECTIONS.inc()
            new_boot = hello.boot_id != self._boot
            if new_boot:
                await self._forget(LinkDown("reach", f"zone {self._zone_id}", "its agent started anew"))
                self._boot = hello.boot_id
            await self._serve(wire, hello, new_boot, opened)
        finally:
            await transport.close()

    async def _serve(
        self, wire: ChannelWire, hello: AgentHello, new_boot: bool, opened: asyncio.Future[AgentHello]
    ) -> None:
        connection = AgentConnection(wire, self._streams, self._events.process_exited, self._zone_id)
        began = asyncio.get_running_loop().time()
        end: Exception = LinkDown("reach", f"zone {self._zone_id}", "its channel is closed")
        self._streams.connected(wire)
        self._connection = connection
        # Not a task group: in Python 3.11 a group forgets a cancellation if its tasks fail at the same time.
        tasks = [
            asyncio.create_task(self._share.run(work), name=f"link {self._zone_id}")
            for work in (
                wire.write_loop,
                connection.read,
                functools.partial(self._set_up, connection, hello, new_boot, opened),
            )
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            end = _first_cause(done)
            raise end
        finally:
            self._connection = None
            for task in tasks:
                task.cancel()
            self._streams.disconnected()
            self._events.disconnected()
            connection.calls.fail(_as_fault(end, self._zone_id))
            if asyncio.get_running_loop().time() - began > STEADY_SECONDS:
                self._backoff.reset()
                self._told = False
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _set_up(
        self,
        connection: AgentConnection,
        hello: AgentHello,
        new_boot: bool,
        opened: asyncio.Future[AgentHello],
    ) -> None:
        _connecting.set(True)
        try:
            await self._events.connected(hello, new_boot)
        except asyncio.CancelledError as error:
            # A cancellation from inside the set-up counts as a failure of the set-up; our own cancellation
            # reaches our caller.
            raise LinkDown("reach", f"zone {self._zone_id}", "its set-up was cancelled") from error
        self._streams.resume()
        connection.calls.resume()
        if not opened.done():
            opened.set_result(hello)


def _operation(request: channel_pb2.Request) -> str:
    operation = request.WhichOneof("op")
    if operation is None:
        raise ValueError("a request without an operation")
    return operation


def _first_cause(done: set[asyncio.Task[None]]) -> Exception:
    """The exception that ended a connection; a protocol violation precedes all others."""
    causes = [task.exception() for task in done if not task.cancelled()]
    failures = [cause for cause in causes if isinstance(cause, Exception)]
    failures.sort(key=lambda cause: not isinstance(cause, ProtocolViolation))
    return failures[0]


def _as_fault(end: Exception, zone_id: str) -> Fault:
    """The fault for the callers of an ended connection."""
    if isinstance(end, ProtocolViolation):
        return ProtocolViolation("reach", f"zone {zone_id}", end.cause)
    cause = end.cause if isinstance(end, LinkDown) else str(end)
    return LinkDown("reach", f"zone {zone_id}", f"the connection ended: {cause}")
