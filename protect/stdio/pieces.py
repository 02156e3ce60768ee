"""What pieces of output take in memory."""

from __future__ import annotations

LEAST = 128
"""What a piece is taken to hold, be it smaller: it is an object of its own."""


def room_of(data: bytearray | bytes) -> int:
    """Bytes to count for it."""
    return max(len(data), LEAST)
