"""The open calls of one connection, and the checks of their replies."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from daemonkit import faults
from protect.channel import reply_rules
from protect.channel.frames import MAX_STREAM, Frame, violation
from protect.channel.messages import printable
from protect.model.errors import CannotStart
from xenpod_proto.channel.v1 import channel_pb2

MAX_QUERIES = 4
"""One query for each kind of statistics, and one for the clock."""
MOST_OPEN = 64 - MAX_QUERIES
"""Maximum of other open calls; the agent accepts 64 calls of all kinds."""
MESSAGE_CHARACTERS = 4096

RESULTS: Mapping[str, str] = {
    "create_container": "created",
    "exec_process": "created",
    "list_processes": "processes",
    "get_stats": "stats",
    "get_facts": "facts",
    "resize_zone": "size",
    "dial": "dialed",
    "read_file": "content",
    "sync_clock": "clock",
    "find_device": "device",
}
"""The result field of an operation's reply; all other operations are answered by ``done``."""
CREATING = frozenset({"create_container", "exec_process", "dial"})

KINDS: Mapping[int, type[faults.Fault]] = {
    3: faults.Invalid,
    4: faults.TooLate,
    5: faults.Missing,
    6: faults.Exists,
    7: faults.Denied,
    8: faults.Exhausted,
    9: faults.Refused,
    12: faults.Unsupported,
    14: faults.Unreachable,
}
"""Fault by google.rpc.Code; all other codes are Broken."""


def fault_of(operation: str, zone_id: str, untrusted_error: channel_pb2.Error) -> faults.Fault:
    """The fault for an agent's error."""
    kind = KINDS.get(untrusted_error.code, faults.Broken)
    if operation in ("create_container", "start_container") and untrusted_error.cannot_start:
        kind = CannotStart
    cause = printable(untrusted_error.message, MESSAGE_CHARACTERS) or "the agent gave no cause"
    return kind(operation.replace("_", " "), f"in zone {zone_id}", cause)


@dataclass(slots=True)
class OpenCall:
    """A call without a reply yet; its caller may have left."""

    operation: str
    answer: asyncio.Future[channel_pb2.Reply]
    is_query: bool = False
    """Whether the call has its own slot, and never waits for a free one."""

    @property
    def answered(self) -> bool:
        """Whether the reply has come."""
        return self.answer.done() and not self.answer.cancelled() and self.answer.exception() is None


@dataclass(frozen=True, slots=True)
class Answer:
    """A validated reply; ``wanted`` tells whether a caller still waits."""

    call: OpenCall
    reply: channel_pb2.Reply

    @property
    def wanted(self) -> bool:
        return not self.call.answer.done()


class CallTable:
    """Ids and callers.  An id stays taken until its reply comes, even after the caller's end."""

    def __init__(self) -> None:
        self._open: dict[int, OpenCall] = {}
        self._slots = asyncio.Semaphore(MOST_OPEN)
        self._resumed = asyncio.Event()
        self._last_id = 0
        self._failure: Exception | None = None

    @property
    def creating(self) -> bool:
        """Whether a stream-creating call is open."""
        return any(call.operation in CREATING for call in self._open.values())

    async def open(self, operation: str, early: bool) -> tuple[int, OpenCall]:
        """Open a call as soon as a slot is free; returns its id and the call.

        Unless ``early``, stream-creating calls wait for ``resume``: during the listing of old streams, new
        streams could not be told from old ones.
        """
        if operation in CREATING and not early:
            await self._resumed.wait()
        await self._slots.acquire()
        if self._failure is not None:
            self._slots.release()  # the next waiter gets the failure, too
            raise self._failure
        return self._add(OpenCall(operation, asyncio.get_running_loop().create_future()))

    def ask(self, operation: str) -> tuple[int, OpenCall]:
        """Open a query at once; returns its id and the call.  Exhausted: too many queries are open."""
        if self._failure is not None:
            raise self._failure
        if sum(call.is_query for call in self._open.values()) >= MAX_QUERIES:
            raise faults.Exhausted(operation, "in a zone", f"{MAX_QUERIES} questions are open")
        return self._add(OpenCall(operation, asyncio.get_running_loop().create_future(), is_query=True))

    def _add(self, call: OpenCall) -> tuple[int, OpenCall]:
        call_id = self._last_id % MAX_STREAM + 1
        while call_id in self._open:
            call_id = call_id % MAX_STREAM + 1
        self._last_id = call_id
        self._open[call_id] = call
        return call_id, call

    def resume(self) -> None:
        """Let stream-creating calls begin: the old streams have been listed."""
        self._resumed.set()

    def close(self, call_id: int) -> None:
        """Free the id of an answered or unsent call."""
        call = self._open.pop(call_id, None)
        if call is not None and not call.is_query:
            self._slots.release()

    def operation(self, call_id: int) -> str:
        """The operation of an open call; "" for an unknown id."""
        call = self._open.get(call_id)
        return call.operation if call is not None else ""

    def reply(self, frame: Frame) -> Answer:
        """Parse and check a REPLY.  ProtocolViolation: no such open call, or a reply to another operation.

        The call stays open until ``close``.
        """
        call = self._open.get(frame.stream)
        if call is None:
            raise violation(f"REPLY to call {frame.stream}, which is not open")
        reply_rules.check_reply(call.operation, frame.payload)
        try:
            untrusted = channel_pb2.Reply.FromString(frame.payload)
        except DecodeError as error:
            raise violation(f"REPLY to {call.operation} cannot be parsed") from error
        result = untrusted.WhichOneof("result")
        if untrusted.HasField("error"):
            if result is not None or untrusted.error.code == 0:
                raise violation(f"REPLY to {call.operation} with an error that is none")
        elif result != RESULTS.get(call.operation, "done"):
            raise violation(f"REPLY to {call.operation} with {result or 'nothing'}")
        return Answer(call, untrusted)

    def fail(self, failure: Exception) -> None:
        """Fail all open and waiting calls, and every later call: the connection has ended."""
        self._failure = failure
        for call in self._open.values():
            if not call.answer.done():
                call.answer.set_exception(failure)
        for call_id in list(self._open):
            self.close(call_id)
        self._resumed.set()
