"""Checks an agent's unsolicited messages: its HELLO, and its events with their rate."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from daemonkit.loop.token_bucket import TokenBucket
from protect.channel import guest_steps
from protect.channel.frames import VERSION, Frame, Type, encode, violation
from protect.model.process import AgentHello, ProcessExited, ProcessName
from xenpod_proto.channel.v1 import channel_pb2

BOOT_ID_LENGTH = 16
TEXT_CHARACTERS = 256
BURST_EVENTS = 4096.0
EVENTS_PER_SECOND = 256.0
ID_CHARACTERS = 256


def printable(untrusted_text: str, longest: int) -> str:
    """The text without control characters, at most ``longest`` characters: safe for a log or an error."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in untrusted_text[:longest])


def host_hello(zone_id: str) -> bytes:
    """Our HELLO, the first frame of a connection."""
    hello = channel_pb2.Hello(version_min=VERSION, version_max=VERSION, zone_id=zone_id)
    return encode(Frame(Type.HELLO, 0, hello.SerializeToString()))


def agent_hello(frame: Frame) -> AgentHello:
    """Read the agent's HELLO; its texts are printable and bounded, but unverified claims.

    ProtocolViolation: not a HELLO, or an unsupported version.
    """
    if frame.type is not Type.HELLO:
        raise violation(f"{frame.type.name} before HELLO")
    try:
        untrusted = channel_pb2.Hello.FromString(frame.payload)
    except DecodeError as error:
        raise violation("HELLO cannot be parsed") from error
    if untrusted.version_min != VERSION or untrusted.version_max != VERSION:
        chosen = f"{untrusted.version_min} to {untrusted.version_max}"
        raise violation(f"HELLO chose version {chosen}, we speak {VERSION}")
    if len(untrusted.boot_id) != BOOT_ID_LENGTH:
        raise violation(f"HELLO with a boot id of {len(untrusted.boot_id)} bytes")
    return AgentHello(
        boot_id=untrusted.boot_id,
        agent_version=printable(untrusted.agent_version, TEXT_CHARACTERS),
        kernel_release=printable(untrusted.kernel_release, TEXT_CHARACTERS),
        hypervisor_type=printable(untrusted.hypervisor_type, TEXT_CHARACTERS),
        file_volumes=untrusted.file_volumes,
        anonymous_volumes=untrusted.anonymous_volumes,
        resizes=untrusted.resizes,
        steps=guest_steps.read_steps(untrusted.steps),
    )


class EventGate:
    """Limits the rate of events; an honest zone stays below the limit."""

    def __init__(self) -> None:
        self._bucket = TokenBucket(BURST_EVENTS, EVENTS_PER_SECOND)

    def exited(self, frame: Frame) -> ProcessExited:
        """Check an event.  ProtocolViolation: malformed, or above the rate."""
        if not self._bucket.take():
            raise violation(f"more than {EVENTS_PER_SECOND:.0f} events a second")
        try:
            untrusted = channel_pb2.Event.FromString(frame.payload)
        except DecodeError as error:
            raise violation("EVENT cannot be parsed") from error
        if untrusted.WhichOneof("event") != "process_exited":
            raise violation("EVENT without an event")
        return checked_exit(untrusted.process_exited)


def checked_exit(untrusted: channel_pb2.ProcessExited) -> ProcessExited:
    """Check an exit message; returns its value.  ProtocolViolation: out of bounds."""
    process = untrusted.process
    if (
        not process.container_id
        or len(process.container_id) > ID_CHARACTERS
        or len(process.exec_id) > ID_CHARACTERS
    ):
        raise violation("exit of a process without a proper name")
    if untrusted.exit_code > 255:
        raise violation(f"exit code {untrusted.exit_code}")
    return ProcessExited(
        process=ProcessName(process.container_id, process.exec_id),
        exit_code=untrusted.exit_code,
        oom_killed=untrusted.oom_killed,
        exited_at_ns=untrusted.exited_at_ns,
        zone_oom=untrusted.zone_oom,
    )
