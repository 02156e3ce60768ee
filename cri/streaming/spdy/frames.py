"""The frames of SPDY/3.1 as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

Headers = Mapping[str, tuple[str, ...]]
"""Lower-case names, each with its values in order."""

VERSION = 3
HEADER_BYTES = 8
MAX_DATA_BYTES = (1 << 24) - 1
"""Maximum bytes of data in a frame; the length has 24 bits."""
MAX_STREAM = (1 << 31) - 1


class FrameType(IntEnum):
    """Types of control frames (draft 3.1, section 2.6)."""

    SYN_STREAM = 1
    SYN_REPLY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    HEADERS = 8
    WINDOW_UPDATE = 9
    CREDENTIAL = 10


class ResetStatus(IntEnum):
    """The reason of a reset (section 2.6.3)."""

    PROTOCOL_ERROR = 1
    INVALID_STREAM = 2
    REFUSED_STREAM = 3
    UNSUPPORTED_VERSION = 4
    CANCEL = 5
    INTERNAL_ERROR = 6
    FLOW_CONTROL_ERROR = 7


FLAG_FIN = 1
FLAG_UNIDIRECTIONAL = 2


class SpdyError(ValueError):
    """The peer broke the protocol; the rest of its input is unreadable."""


@dataclass(frozen=True, slots=True)
class SynStream:
    """A new stream; ``fin``: the opener sends nothing on the stream."""

    stream: int
    headers: Headers = field(default_factory=dict)
    fin: bool = False
    unidirectional: bool = False
    associated: int = 0
    priority: int = 0


@dataclass(frozen=True, slots=True)
class SynReply:
    """A stream is accepted."""

    stream: int
    headers: Headers = field(default_factory=dict)
    fin: bool = False


@dataclass(frozen=True, slots=True)
class MoreHeaders:
    """HEADERS on an open stream."""

    stream: int
    headers: Headers = field(default_factory=dict)
    fin: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    """Ends both directions of a stream at once; ``status`` comes from the peer."""

    stream: int
    status: int


@dataclass(frozen=True, slots=True)
class Ping:
    """A ping to echo; odd from a client, even from a server."""

    id: int


@dataclass(frozen=True, slots=True)
class GoAway:
    """The peer opens no more streams."""

    last_stream: int
    status: int = 0


@dataclass(frozen=True, slots=True)
class Data:
    """A part of a data frame; ``fin`` on the last part of the last frame."""

    stream: int
    data: bytes
    fin: bool = False


@dataclass(frozen=True, slots=True)
class Ignored:
    """An ignored frame: settings, window updates, credentials, unknown types."""

    kind: int


Frame = SynStream | SynReply | MoreHeaders | Reset | Ping | GoAway | Data | Ignored
