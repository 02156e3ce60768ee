"""Encodes frames."""

from __future__ import annotations

import struct

from cri.streaming.spdy.frames import (
    FLAG_FIN,
    FLAG_UNIDIRECTIONAL,
    MAX_DATA_BYTES,
    VERSION,
    Data,
    Frame,
    FrameType,
    GoAway,
    Ignored,
    MoreHeaders,
    Ping,
    Reset,
    SynReply,
    SynStream,
)
from cri.streaming.spdy.headers import Compressor

_HEAD = struct.Struct(">II")
_CONTROL = struct.Struct(">HHI")
_ONE = struct.Struct(">I")
_SYN = struct.Struct(">IIBB")


class SpdyEncoder:
    """Encodes one direction of a connection; frames must be sent in the order of their encoding."""

    def __init__(self) -> None:
        self._compressor = Compressor()

    def encode(self, frame: Frame) -> bytes:
        """Encode a frame.  ValueError: its data is too long for one frame."""
        match frame:
            case Data(stream, data, fin):
                if len(data) > MAX_DATA_BYTES:
                    raise ValueError(f"{len(data)} bytes do not fit into one frame")
                return _HEAD.pack(stream, len(data) | (FLAG_FIN << 24 if fin else 0)) + data
            case SynStream():
                return self._syn_stream(frame)
            case SynReply(stream, headers, fin):
                body = _ONE.pack(stream) + self._compressor.pack(headers)
                return _control(FrameType.SYN_REPLY, FLAG_FIN if fin else 0, body)
            case MoreHeaders(stream, headers, fin):
                body = _ONE.pack(stream) + self._compressor.pack(headers)
                return _control(FrameType.HEADERS, FLAG_FIN if fin else 0, body)
            case Reset(stream, status):
                return _control(FrameType.RST_STREAM, 0, _HEAD.pack(stream, status))
            case Ping(number):
                return _control(FrameType.PING, 0, _ONE.pack(number))
            case GoAway(last_stream, status):
                return _control(FrameType.GOAWAY, 0, _HEAD.pack(last_stream, status))
            case Ignored(kind):
                return _control(kind, 0, b"")

    def _syn_stream(self, frame: SynStream) -> bytes:
        flags = (FLAG_FIN if frame.fin else 0) | (FLAG_UNIDIRECTIONAL if frame.unidirectional else 0)
        head = _SYN.pack(frame.stream, frame.associated, frame.priority << 5, 0)
        return _control(FrameType.SYN_STREAM, flags, head + self._compressor.pack(frame.headers))


def _control(kind: int, flags: int, body: bytes) -> bytes:
    return _CONTROL.pack(0x8000 | VERSION, kind, flags << 24 | len(body)) + body
