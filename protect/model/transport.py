"""Bytes to and from a zone's agent."""

from __future__ import annotations

from typing import Protocol


class Transport(Protocol):
    """A connected byte stream to a zone's agent."""

    async def read(self, limit: int) -> bytes:
        """At least one byte, at most ``limit``; ``b""`` after the other side's end."""
        ...

    async def write(self, data: bytes) -> None:
        """Write all bytes, as fast as the other side reads.  ConnectionError: the other side is gone."""
        ...

    async def close(self) -> None:
        """Close at once; never fails; a read under way gives ``b""``."""
        ...
