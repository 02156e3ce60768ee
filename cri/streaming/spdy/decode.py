"""Decodes frames from bytes in chunks of any size."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from cri.streaming.spdy.frames import (
    FLAG_FIN,
    FLAG_UNIDIRECTIONAL,
    HEADER_BYTES,
    MAX_STREAM,
    VERSION,
    Data,
    Frame,
    FrameType,
    GoAway,
    Ignored,
    MoreHeaders,
    Ping,
    Reset,
    SpdyError,
    SynReply,
    SynStream,
)
from cri.streaming.spdy.headers import MAX_BLOCK_BYTES, Decompressor

MAX_CONTROL = MAX_BLOCK_BYTES + 64
"""Maximum bytes of a control frame's body, kept until complete; data passes as it arrives."""

_HEAD = struct.Struct(">II")
_TWO = struct.Struct(">II")
_ONE = struct.Struct(">I")
_CONTROL_BIT = 1 << 31


class SpdyDecoder:
    """Decodes one direction of a connection.  After a SpdyError the decoder takes nothing more."""

    def __init__(self) -> None:
        self._decompressor = Decompressor()
        self._kept = bytearray()
        self._stream = 0
        self._left = 0
        """Number of missing bytes of the data frame under way."""
        self._fin = False
        self._broken = ""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames, and parts of data frames, completed by ``data``; SpdyError."""
        if self._broken:
            raise SpdyError(self._broken)
        try:
            yield from self._frames(data)
        except SpdyError as error:
            self._broken = str(error)
            self._kept.clear()
            raise

    def _frames(self, data: bytes) -> Iterator[Frame]:
        view, at = memoryview(data), 0
        while True:
            if self._left:
                taken = min(self._left, len(view) - at)
                if not taken:
                    return
                self._left -= taken
                last = not self._left and self._fin
                yield Data(self._stream, bytes(view[at : at + taken]), last)
                at += taken
                continue
            if self._missing(HEADER_BYTES):
                at += self._keep(view[at:], HEADER_BYTES)
                if self._missing(HEADER_BYTES):
                    return
            first, second = _HEAD.unpack_from(self._kept)
            length = second & 0xFFFFFF
            if not first & _CONTROL_BIT:
                yield from self._begin_data(first, second >> 24, length)
                continue
            _check_control(first, length)
            at += self._keep(view[at:], HEADER_BYTES + length)
            if self._missing(HEADER_BYTES + length):
                return
            body = bytes(self._kept[HEADER_BYTES:])
            self._kept.clear()
            yield self._control(first & 0xFFFF, second >> 24, body)

    def _missing(self, size: int) -> bool:
        return len(self._kept) < size

    def _keep(self, view: memoryview, size: int) -> int:
        """Keep bytes until their number is ``size``; returns the number of taken bytes."""
        taken = min(size - len(self._kept), len(view))
        self._kept += view[:taken]
        return taken

    def _begin_data(self, stream: int, flags: int, length: int) -> Iterator[Frame]:
        self._kept.clear()
        if not stream:
            raise SpdyError("data on stream 0")
        self._stream, self._left, self._fin = stream, length, bool(flags & FLAG_FIN)
        if not length:
            yield Data(stream, b"", self._fin)

    def _control(self, kind: int, flags: int, body: bytes) -> Frame:
        match kind:
            case FrameType.SYN_STREAM:
                return self._syn_stream(flags, body)
            case FrameType.SYN_REPLY | FrameType.HEADERS:
                stream = _stream(body, 4)
                make = SynReply if kind == FrameType.SYN_REPLY else MoreHeaders
                return make(stream, self._decompressor.unpack(body[4:]), bool(flags & FLAG_FIN))
            case FrameType.RST_STREAM:
                _exactly(kind, body, 8)
                return Reset(_stream(body, 8), int(_TWO.unpack(body)[1]))
            case FrameType.PING:
                _exactly(kind, body, 4)
                return Ping(int(_ONE.unpack(body)[0]))
            case FrameType.GOAWAY:
                _exactly(kind, body, 8)
                last, status = _TWO.unpack(body)
                return GoAway(last & MAX_STREAM, status)
            case _:
                return Ignored(kind)

    def _syn_stream(self, flags: int, body: bytes) -> Frame:
        stream = _stream(body, 10)
        headers = self._decompressor.unpack(body[10:])
        return SynStream(
            stream=stream,
            headers=headers,
            fin=bool(flags & FLAG_FIN),
            unidirectional=bool(flags & FLAG_UNIDIRECTIONAL),
            associated=int(_ONE.unpack_from(body, 4)[0]) & MAX_STREAM,
            priority=body[8] >> 5,
        )


def _check_control(first: int, length: int) -> None:
    version = first >> 16 & 0x7FFF
    if version != VERSION:
        raise SpdyError(f"version {version} is not {VERSION}")
    if length > MAX_CONTROL:
        raise SpdyError(f"control frame of {length} bytes, more than {MAX_CONTROL}")


def _stream(body: bytes, least: int) -> int:
    if len(body) < least:
        raise SpdyError(f"control frame of {len(body)} bytes, fewer than {least}")
    stream = int(_ONE.unpack_from(body)[0]) & MAX_STREAM
    if not stream:
        raise SpdyError("control frame about stream 0")
    return stream


def _exactly(kind: int, body: bytes, size: int) -> None:
    if len(body) != size:
        raise SpdyError(f"{FrameType(kind).name} of {len(body)} bytes, not {size}")
