"""One connection to an agent after HELLO: makes calls, matches replies, and passes other frames on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from daemonkit.faults import Invalid
from protect.channel.calls import CallTable, fault_of
from protect.channel.frames import RULES, Frame, Type, encode, violation
from protect.channel.messages import EventGate, checked_exit
from protect.channel.table import StreamTable
from protect.channel.wire import ChannelWire
from protect.model.process import ProcessExited
from xenpod_proto.channel.v1 import channel_pb2


class AgentConnection:
    """A connection to an agent, from its HELLO to its end."""

    def __init__(
        self,
        wire: ChannelWire,
        streams: StreamTable,
        process_exited: Callable[[ProcessExited], None],
        zone_id: str,
    ) -> None:
        self.calls = CallTable()
        self._wire = wire
        self._streams = streams
        self._process_exited = process_exited
        self._zone_id = zone_id
        self._events = EventGate()

    async def call(self, operation: str, request: channel_pb2.Request, early: bool) -> channel_pb2.Reply:
        """Make a call and wait for its reply; ``early``: during the set-up of the connection.

        The agent's error is raised as its fault.  LinkDown: the connection ended first.
        """
        payload = self._payload(operation, request)
        call_id, call = await self.calls.open(operation, early)
        self._wire.call(call_id, encode(Frame(Type.CALL, call_id, payload)))
        try:
            return await call.answer
        except asyncio.CancelledError:
            if call.answered:
                # The reply came at the moment of the caller's cancellation.
                self._streams.drop(_made_by(call.answer.result()))
            raise
        finally:
            if self._wire.withdraw(call_id):
                self.calls.close(call_id)

    def ask(self, operation: str, request: channel_pb2.Request) -> asyncio.Future[channel_pb2.Reply]:
        """Make a call without effect in the zone; the future gets the reply, or the errors of ``call``."""
        payload = self._payload(operation, request)
        call_id, call = self.calls.ask(operation)
        self._wire.call(call_id, encode(Frame(Type.CALL, call_id, payload)))
        return call.answer

    def _payload(self, operation: str, request: channel_pb2.Request) -> bytes:
        payload = request.SerializeToString()
        if len(payload) > RULES[Type.CALL].longest:
            name = operation.replace("_", " ")
            raise Invalid(name, f"in zone {self._zone_id}", f"the request has {len(payload)} bytes")
        return payload

    async def read(self) -> None:
        """Handle the agent's frames until the connection ends; it always ends with an exception."""
        await self._wire.read_loop(self.handle, self.calls.operation)

    def handle(self, frame: Frame) -> None:
        """Handle a frame from the agent; ProtocolViolation if it breaks a rule."""
        if frame.type is Type.DATA:
            self._streams.data(frame)
        elif frame.type is Type.CREDIT:
            self._streams.credit(frame)
        elif frame.type is Type.REPLY:
            self._reply(frame)
        elif frame.type is Type.EVENT:
            self._process_exited(self._events.exited(frame))
        else:
            raise violation(f"{frame.type.name} after HELLO")

    def _reply(self, frame: Frame) -> None:
        answer = self.calls.reply(frame)
        reply = answer.reply
        if reply.HasField("created"):
            self._announce(reply.created, answer.wanted)
        if reply.HasField("dialed"):
            self._dialed(reply.dialed, answer.wanted)
        for process in reply.processes.processes:
            # A list may overtake the reply to the call that created a process.
            self._streams.announce(process.created, listed=True, fresh=self.calls.creating, wanted=False)
            if process.HasField("exited"):
                checked_exit(process.exited)
        for dialed in reply.processes.connections:
            streams = _streams_of(dialed)
            self._streams.announce(streams, listed=True, fresh=self.calls.creating, wanted=False)
        if reply.HasField("processes"):
            self._streams.listed()
        self.calls.close(frame.stream)
        if not answer.wanted:
            return
        if reply.HasField("error"):
            answer.call.answer.set_exception(fault_of(answer.call.operation, self._zone_id, reply.error))
        else:
            answer.call.answer.set_result(reply)

    def _dialed(self, untrusted: channel_pb2.Dialed, wanted: bool) -> None:
        """Announce a dialed connection.  Without a waiting caller, drop the output and so close it."""
        streams = _streams_of(untrusted)
        if not (streams.stdin_stream and streams.stdout_stream):
            raise violation("REPLY to dial without two streams")
        self._announce(streams, wanted)

    def _announce(self, streams: channel_pb2.ProcessCreated, wanted: bool) -> None:
        """Announce new streams; drop the streams of a reply without a waiting caller."""
        self._streams.announce(streams, listed=False, fresh=True, wanted=wanted)
        if not wanted:
            self._streams.drop(streams)


def _made_by(reply: channel_pb2.Reply) -> channel_pb2.ProcessCreated:
    """The streams that a call created, if any."""
    return _streams_of(reply.dialed) if reply.HasField("dialed") else reply.created


def _streams_of(dialed: channel_pb2.Dialed) -> channel_pb2.ProcessCreated:
    """The streams of a connection, in the form of a process without stderr."""
    return channel_pb2.ProcessCreated(stdin_stream=dialed.in_stream, stdout_stream=dialed.out_stream)
