"""A frame decoder as tests use it: all frames of some bytes, and the number of bytes that it keeps."""

from __future__ import annotations

from protect.channel.frames import Frame, FrameDecoder


def feed(decoder: FrameDecoder, untrusted: bytes) -> list[Frame]:
    """Add bytes, and take all complete frames.  ProtocolViolation at the first that breaks a rule."""
    decoder.add(untrusted)
    frames: list[Frame] = []
    while (frame := decoder.take()) is not None:
        frames.append(frame)
    return frames


def kept_bytes(decoder: FrameDecoder) -> int:
    """Number of bytes of an incomplete frame."""
    return len(decoder._source) - decoder._at
