"""What the agent tells unasked: checked, and no more of it than a zone can have to tell."""

from __future__ import annotations

import time

from google.protobuf.message import DecodeError

from protect.channel.frames import Frame, violation
from protect.model.process import ProcessExited, ProcessName
from xenpod_proto.channel.v1 import channel_pb2

BURST = 4096.0
PER_SECOND = 256.0
LONGEST_ID = 256


class EventGate:
    """Lets events through at a bounded rate; a zone's processes cannot end more often than that."""

    def __init__(self) -> None:
        self._allowance = BURST
        self._at = time.monotonic()

    def exited(self, frame: Frame) -> ProcessExited:
        """The validated event; ProtocolViolation if it is malformed or one too many."""
        now = time.monotonic()
        self._allowance = min(BURST, self._allowance + (now - self._at) * PER_SECOND) - 1
        self._at = now
        if self._allowance < 0:
            raise violation(f"more than {PER_SECOND:.0f} events a second")
        try:
            untrusted = channel_pb2.Event.FromString(frame.payload)
        except DecodeError as error:
            raise violation("EVENT cannot be parsed") from error
        if untrusted.WhichOneof("event") != "process_exited":
            raise violation("EVENT without an event")
        return checked_exit(untrusted.process_exited)


def checked_exit(untrusted: channel_pb2.ProcessExited) -> ProcessExited:
    """The message as a value, its numbers and names within their bounds; else ProtocolViolation."""
    process = untrusted.process
    if (
        not process.container_id
        or len(process.container_id) > LONGEST_ID
        or len(process.exec_id) > LONGEST_ID
    ):
        raise violation("exit of a process without a proper name")
    if untrusted.exit_code > 255:
        raise violation(f"exit code {untrusted.exit_code}")
    return ProcessExited(
        process=ProcessName(process.container_id, process.exec_id),
        exit_code=untrusted.exit_code,
        oom_killed=untrusted.oom_killed,
        exited_at_ns=untrusted.exited_at_ns,
    )
