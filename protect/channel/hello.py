"""The first frame in each direction: versions, and who the agent is."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from protect.channel.frames import VERSION, Frame, Type, encode, violation
from protect.model.process import AgentHello
from xenpod_proto.channel.v1 import channel_pb2

BOOT_ID_LENGTH = 16
LONGEST_TEXT = 256


def printable(untrusted_text: str, longest: int) -> str:
    """The text without control characters, cut at ``longest`` characters: safe for a log or an error."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in untrusted_text[:longest])


def host_hello(zone_id: str) -> bytes:
    """The frame we begin with."""
    hello = channel_pb2.Hello(version_min=VERSION, version_max=VERSION, zone_id=zone_id)
    return encode(Frame(Type.HELLO, 0, hello.SerializeToString()))


def agent_hello(frame: Frame) -> AgentHello:
    """The agent's answer, its texts printable and bounded (but its own claims).

    ProtocolViolation if it is none, or chose a version we do not speak.
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
        agent_version=printable(untrusted.agent_version, LONGEST_TEXT),
        kernel_release=printable(untrusted.kernel_release, LONGEST_TEXT),
        hypervisor_type=printable(untrusted.hypervisor_type, LONGEST_TEXT),
    )
